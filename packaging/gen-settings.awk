# settings.tsv -> SETTING(name, type, default, min, max, scope, help) lines for the C parsers.
BEGIN { FS = "\t" }
/^#/ || NF == 0 { next }
NF != 8 { printf "%s:%d: want 8 columns, have %d\n", FILENAME, FNR, NF > "/dev/stderr"; exit 1 }
function quoted(s) { gsub(/\\/, "\\\\", s); gsub(/"/, "\\\"", s); return "\"" s "\"" }
{
	printf "SETTING(%s, SETTING_TYPE_%s, %s, %s, %s, SETTING_SCOPE_%s, %s)\n", quoted($1), toupper($2), \
		quoted($3), quoted($4), quoted($5), toupper($6), quoted($7)
}
