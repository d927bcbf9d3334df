"""What the parts cost on this machine: `make bench`."""
