#include "cli/jobfile.h"

#include <stdio.h>
#include <string.h>

#include "base/crypto.h"
#include "base/mem.h"
#include "job/manifest.h"

void jobfile_release(struct jobfile *m)
{
    cJSON_Delete(m->tree);
    training_job_free(m->job);
    *m = (struct jobfile){ .tree = NULL };
}

int jobfile_new_uid(char ret_uid[37], struct error *e)
{
    uint8_t b[16];
    if (crypto_random(b, sizeof b, e) < 0)
        return -1;
    b[6] = (uint8_t)((b[6] & 0x0f) | 0x40);
    b[8] = (uint8_t)((b[8] & 0x3f) | 0x80);
    char hex[33];
    crypto_hex(b, sizeof b, hex);
    snprintf(ret_uid, 37, "%.8s-%.4s-%.4s-%.4s-%.12s", hex, hex + 8, hex + 12, hex + 16, hex + 20);
    return 0;
}

static cJSON *child_object(cJSON *parent, const char *key)
{
    cJSON *child = cJSON_GetObjectItemCaseSensitive(parent, key);
    if (!cJSON_IsObject(child)) {
        cJSON_DeleteItemFromObjectCaseSensitive(parent, key);
        child = json_object();
        json_put(parent, key, child);
    }
    return child;
}

static void set_uid(cJSON *tree, const char *uid)
{
    cJSON *metadata = child_object(tree, "metadata");
    cJSON_DeleteItemFromObjectCaseSensitive(metadata, "uid");
    json_put_text(metadata, "uid", uid);
}

/* doc gives the places of problems and may be NULL; `original` is the tree that it knows. */
static int decode(const char *name, const cJSON *original, const struct yaml_doc *doc, const char *uid, struct jobfile *ret,
                  char **ret_report, struct error *e)
{
    auto_free struct problems *problems = xcalloc(1, sizeof *problems);
    struct training_job *checked = NULL;
    if (job_decode(original, doc, problems, &checked, e) < 0) {
        *ret_report = problems->count ? problems_format(problems, name) : NULL;
        return -1;
    }
    training_job_free(checked);

    auto_jobfile struct jobfile m = { .tree = cJSON_Duplicate(original, true) };
    schema_default(schema_of_kind(JOB_KIND), m.tree);
    if (uid)
        set_uid(m.tree, uid);
    if (job_decode(m.tree, NULL, problems, &m.job, e) < 0)
        return error_wrap(e, "%s with its defaults", name);
    *ret = m;
    m = (struct jobfile){ .tree = NULL };
    return 0;
}

int jobfile_from_tree(const char *name, cJSON *tree, const char *uid, struct jobfile *ret, char **ret_report, struct error *e)
{
    auto_json cJSON *own = tree;
    *ret_report = NULL;
    return decode(name, own, NULL, uid, ret, ret_report, e);
}

int jobfile_read(const char *path, const char *uid, struct jobfile *ret, char **ret_report, struct error *e)
{
    auto_yaml struct yaml_doc *doc = NULL;
    const cJSON *tree = NULL;
    *ret_report = NULL;
    if (manifest_open(path, &doc, &tree, e) < 0)
        return -1;
    return decode(yaml_name(doc), tree, doc, uid, ret, ret_report, e);
}
