/*
 * np.h — `ringmaster run -np 4 -- python train.py`: horovodrun's command line turned into a TrainingJob in memory. Pure.
 *
 * Every flag of horovodrun 0.28 is known, in one table (NP_FLAGS in np.c): it is done here, or it becomes a variable of the
 * training process, or it is accepted with a note because it has nothing to do here, or it is refused with the reason and what
 * to use instead. None is taken for a typing error.
 */
#ifndef CLI_NP_H
#define CLI_NP_H

#include <stdio.h>

#include "base/json.h"
#include "base/opt.h"

struct np_options {
    bool used;                 /* one of horovodrun's flags was there */
    int64_t processes;         /* -np; 0 = not given */
    int64_t min_processes, max_processes; /* --min-np, --max-np; 0 = not given */
    const char *output_filename; /* a directory: rank.N/stdout in it; borrowed from argv */
    const char *hosts;         /* -H; borrowed from argv */
    const char *hostfile;
    int64_t start_timeout_s;   /* 0 = not given */
    int64_t reset_limit;       /* -1 = not given */
    bool log_timestamps;
    cJSON *env;                /* array of {name, value}: HOROVOD_* from flags */
    char notes[2048];          /* one line a flag that was accepted but has no effect */
};
void np_release(struct np_options *np);

/* --min-np and --max-np against the number of processes and each other. */
MUST_CHECK int np_check_counts(const struct np_options *np, int64_t processes, struct error *e);

/* All flags of the table, "-np" and "--hosts", NULL-terminated; static. */
const char *const *np_flag_names(void);

/* Takes horovodrun's flags out of argv[1..] (up to "--" or the command's first word) and leaves the rest, in order, for
 * opt_parse with `defs`, whose flags are skipped together with their values. */
MUST_CHECK int np_extract(int *argc, char **argv, const struct opt_def *defs, size_t def_count, struct np_options *ret,
                          struct error *e);

/* Slots on this machine in "localhost:4,127.0.0.1:2" or, by line, a host file's "localhost slots=4". Another host is an
 * ERROR_INVALID that says what to do. */
MUST_CHECK int np_slots(const char *hosts, const char *own_name, int64_t *ret_slots, struct error *e);
MUST_CHECK int np_hostfile_slots(const char *text, const char *own_name, int64_t *ret_slots, struct error *e);

/* The job's name from a command: "python3 -u src/Train_mnist.py" gives "train-mnist". */
void np_name(char *const *command, size_t count, char ret_name[52]);

/* The manifest: `processes` Workers that run `command`. Owned by the caller. */
cJSON *np_manifest(const struct np_options *np, const char *name, int64_t processes, char *const *command, size_t count);

/* The flags with what becomes of each, as rows for --help. */
void np_help(FILE *out);

#endif
