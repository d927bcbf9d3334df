# settings.tsv -> packaging/doc/settings.md, the reference of every setting.
BEGIN {
	FS = "\t"
	print "# Settings"
	print ""
	print "Made by `make pages` from `python/nccl_inspector/settings/settings.tsv`; do not edit."
	print ""
	print "Settings are lines `key = value` in `/etc/nccl-inspector/nccl-inspector.conf`."
	print ""
	print "- The settings from `default` to `hooks` may also be words in `plugstack.conf`. There `conf=PATH`"
	print "  names another file."
	print "- Settings with a star are also options of a job, after the mode:"
	print "  `--nccl-inspector=prom,interval=10s`."
	print "- Sizes take K, M, G or T. Durations take ms, s, m or h."
	print "- A word or a line that is not valid turns measuring off, and the log says so."
	print ""
	print "| setting | default | meaning |"
	print "|---|---|---|"
}
/^#/ || NF == 0 { next }
{
	gsub("<", "\\&lt;", $7) # Markdown takes <job id> for a tag
	printf "| `%s`%s | %s | %s |\n", $1, $6 == "option" ? "*" : "", $3 == "" ? "" : "`" $3 "`", $7
}
