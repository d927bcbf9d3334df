# settings.tsv -> a sample nccl-inspector.conf with every setting commented out at its default.
BEGIN {
	FS = "\t"
	print "# /etc/nccl-inspector/nccl-inspector.conf: key = value. Every setting, at its default."
	print "# Sizes take K, M, G or T; durations ms, s, m or h."
}
/^#/ || NF == 0 { next }
{
	printf "\n# %s", $7
	if ($4 != "-" && $2 != "bool")
		printf " From %s to %s.", $4, $5
	printf "\n#%s = %s\n", $1, $3
}
