/* SPDX-License-Identifier: Apache-2.0 */
/* settings.h - the settings of a site: one table, one parser, one file.
 *
 * The table is generated from python/nccl_inspector/settings/settings.tsv. Every parser here reads
 * strings and fills a struct; if it refuses one, it gives a printable line for the caller to log.
 * The settings of the node agent are checked, too, but their values are not kept. So the first
 * program that reads an invalid file finds the error.
 */
#ifndef NCCL_INSPECTOR_SETTINGS_H
#define NCCL_INSPECTOR_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifndef SETTINGS_DEFAULT_FILE /* the Makefile says another one for another SYSCONFDIR */
#define SETTINGS_DEFAULT_FILE "/etc/nccl-inspector/nccl-inspector.conf"
#endif
#define SETTINGS_FILE_MAX_BYTES 65536u
#define SETTINGS_LINE_MAX_BYTES 1024u /* of a line in the file */
#define SETTINGS_TEXT_BYTES 512u      /* of a path or a word, with its NUL */
#define SETTINGS_WHY_BYTES 768u       /* of a reason, with its NUL */
#define SETTINGS_QUOTE_BYTES 48u      /* of a quoted value, with its NUL */

enum setting_type {
	SETTING_TYPE_MODE,
	SETTING_TYPE_DURATION, /* kept in microseconds */
	SETTING_TYPE_BOOL,
	SETTING_TYPE_SIZE, /* kept in bytes */
	SETTING_TYPE_PATH,
	SETTING_TYPE_WORD,
	SETTING_TYPE_ADDRESS, /* a word; only the agent uses it */
	SETTING_TYPE_COUNT,
	SETTING_TYPE_PERCENT,  /* kept in thousandths of a percent */
	SETTING_TYPE_DIR,      /* a directory; may be relative to the task's own */
	SETTING_TYPE_SWITCH,   /* enum settings_switch */
	SETTING_TYPE_LEVEL,    /* enum settings_level */
	SETTING_TYPE_VERSIONS, /* like recommended,2.28.0-2.28.5; kept without the word */
	SETTING_TYPE_LIBRARY,  /* a path, or a name that the loader searches */
};

/* Bits, so that a caller can accept several. */
enum setting_scope {
	SETTING_SCOPE_SITE = 1,
	SETTING_SCOPE_OPTION = 2,
	SETTING_SCOPE_AGENT = 4,
};

enum mode {
	MODE_OFF,
	MODE_PROM,
	MODE_JSON,
	MODE_PROM_JSON,
	MODE_REPORT,
};

enum settings_switch {
	SETTINGS_OFF,
	SETTINGS_AUTO,
	SETTINGS_ON,
};

enum settings_level {
	SETTINGS_LEVEL_OFF,
	SETTINGS_LEVEL_WARN,
	SETTINGS_LEVEL_INFO,
};

struct setting {
	const char *name;
	enum setting_type type;
	const char *initial;
	const char *min; /* "-": no limit */
	const char *max;
	unsigned int scope;
	const char *help;
};

/* The settings that matter for a job's tasks. */
struct settings {
	enum mode mode;                       /* setting `default`, or what the job asked for */
	char partitions[SETTINGS_TEXT_BYTES]; /* these four limit the site's default */
	char qos[SETTINGS_TEXT_BYTES];
	uint64_t min_gpus;
	uint64_t sample;
	uint64_t interval_us;
	uint64_t p2p;
	uint64_t min_size_bytes;
	uint64_t verbose; /* these five are only for JSON lines */
	char dir[SETTINGS_TEXT_BYTES];
	uint64_t gzip;
	uint64_t json_max_bytes;
	uint64_t json_min_size_bytes;
	uint64_t phases;
	uint64_t host_time;
	uint64_t broadcasts;
	uint64_t net;   /* enum settings_switch */
	uint64_t debug; /* enum settings_level */
	uint64_t ras;
	uint64_t fr;
	uint64_t fr_pipe;
	char deny_nccl[SETTINGS_TEXT_BYTES];
	uint64_t budget_millipercent;
	char profiler[SETTINGS_TEXT_BYTES];
	char run_dir[SETTINGS_TEXT_BYTES];
	char hooks[SETTINGS_TEXT_BYTES]; /* a directory with prolog/ and epilog/ */
};

/* All settings; the last entry has the name NULL. */
extern const struct setting settings_table[];

void settings_init(struct settings *settings);

/* Returns the setting of this name that has one of the scopes; NULL if there is none. */
const struct setting *settings_find(unsigned int scopes, const char *name);

/* Writes the names of all settings of these scopes, separated by commas. */
void settings_names(unsigned int scopes, char *out, size_t out_bytes);

/* Sets one value; the setting must have one of the scopes. Returns 0, or -EINVAL with a reason in
 * `why` (SETTINGS_WHY_BYTES) and `settings` unchanged. */
int settings_set(struct settings *settings, unsigned int scopes, const char *name,
                 const char *value, char *why);

/* Parses the text of a configuration file; `path` is only for the reason. `text` may contain any
 * byte and needs no NUL at its end. Returns 0, or -EINVAL with `settings` unchanged. */
int settings_parse_text(struct settings *settings, const char *path, const char *text,
                        size_t text_bytes, char *why);

/* Reads a configuration file; a missing file counts as empty. Returns 0 or -errno as above. Never
 * blocks on a FIFO or a device, and accepts at most SETTINGS_FILE_MAX_BYTES. */
int settings_read_file(struct settings *settings, const char *path, char *why);

/* Writes `text` for a log line: printable ASCII in double quotes, shortened if it is long. */
void settings_quote(char out[SETTINGS_QUOTE_BYTES], const char *text);

#endif
