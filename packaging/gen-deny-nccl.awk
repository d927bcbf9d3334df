# deny_nccl.tsv -> the list that `recommended` stands for, as a string for the C parser.
BEGIN { FS = "\t" }
/^#/ || NF == 0 { next }
NF != 3 { printf "%s:%d: want 3 columns, have %d\n", FILENAME, FNR, NF > "/dev/stderr"; failed = 1; exit 1 }
{ list = list (list == "" ? "" : ",") $1 }
END { if (!failed) printf "#define DENY_NCCL_RECOMMENDED \"%s\"\n", list }
