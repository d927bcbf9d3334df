# metrics.tsv -> METRIC(ENUM_NAME, name, type, help) lines for the plugin's writer; the agent's own metrics are left out.
BEGIN { FS = "\t" }
/^#/ || NF == 0 { next }
NF != 5 { printf "%s:%d: want 5 columns, have %d\n", FILENAME, FNR, NF > "/dev/stderr"; exit 1 }
function quoted(s) { gsub(/\\/, "\\\\", s); gsub(/"/, "\\\"", s); return "\"" s "\"" }
$4 == "plugin" { printf "METRIC(METRIC_%s, %s, %s, %s)\n", toupper($1), quoted($1), quoted($2), quoted($5) }
