# settings.tsv -> packaging/doc/settings.md, the reference of every setting.
BEGIN {
	FS = "\t"
	print "# Settings"
	print ""
	print "Made by `make pages` from `python/nccl_inspector/settings/settings.tsv`; do not edit."
	print ""
	print "Settings stand in `/etc/nccl-inspector/nccl-inspector.conf` as `key = value`. Those down to `hooks`"
	print "may also be words in `plugstack.conf`, where `conf=PATH` names another file. Those marked with a"
	print "star are also options of a job, after the mode: `--nccl-inspector=prom,interval=10s`. Sizes take"
	print "K, M, G or T; durations take ms, s, m or h. A word or a line that is not valid turns measuring off,"
	print "and the log says so."
	print ""
	print "| setting | default | meaning |"
	print "|---|---|---|"
}
/^#/ || NF == 0 { next }
{
	gsub("<", "\\&lt;", $7) # Markdown takes <job id> for a tag
	printf "| `%s`%s | %s | %s |\n", $1, $6 == "option" ? "*" : "", $3 == "" ? "" : "`" $3 "`", $7
}
