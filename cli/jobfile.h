/*
 * jobfile.h — a TrainingJob as the local runner keeps it: the manifest with its defaults filled in (what job.json holds) and
 * the job decoded from it.
 */
#ifndef CLI_JOBFILE_H
#define CLI_JOBFILE_H

#include "job/decode.h"

struct jobfile {
    cJSON *tree;               /* defaulted */
    struct training_job *job;
};

void jobfile_release(struct jobfile *m);
#define auto_jobfile __attribute__((cleanup(jobfile_release)))

/* Takes the one TrainingJob of a file ("-": stdin); other kinds in the file are passed over. What is wrong is in e; with it
 * come all problems, one a line, in *ret_report (owned; NULL when there is nothing beyond e). `uid` replaces metadata.uid. */
MUST_CHECK int jobfile_read(const char *path, const char *uid, struct jobfile *ret, char **ret_report, struct error *e);

/* The same from a tree that was built in memory or read from job.json; `name` stands in messages. tree is taken. */
MUST_CHECK int jobfile_from_tree(const char *name, cJSON *tree, const char *uid, struct jobfile *ret, char **ret_report,
                                  struct error *e);

/* A version 4 UUID. */
MUST_CHECK int jobfile_new_uid(char ret_uid[37], struct error *e);

#endif
