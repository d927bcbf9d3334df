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
	print "- A change is in force for the next **job** or **command** that reads the setting. The **agent** and"
	print "  the **controller** service keep what they have read: `nccl-inspector setup node --apply` and"
	print "  `setup controller --apply` reload or restart them if they must ([change a"
	print "  setting](operate.md#change-a-setting))."
	print ""
	print "| setting | default | read by | meaning |"
	print "|---|---|---|---|"
}
/^#/ || NF == 0 { next }
{
	gsub("<", "\\&lt;", $7) # Markdown takes <job id> for a tag
	gsub(",", ", ", $8)
	printf "| `%s`%s | %s | %s | %s |\n", $1, $6 == "option" ? "*" : "", $3 == "" ? "" : "`" $3 "`", $8, $7
}
