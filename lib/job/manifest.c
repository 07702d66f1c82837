#include "job/manifest.h"

#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fs.h"
#include "base/mem.h"
#include "job/job.h"

static int read_stdin(char **ret_text, size_t *ret_len, struct error *e)
{
    auto_buf struct buf text = BUF_INIT(YAML_MAX_BYTES + 1);
    char chunk[16 * 1024];
    ssize_t n;

    while ((n = read(STDIN_FILENO, chunk, sizeof chunk)) > 0 && buf_ok(&text))
        buf_add_bytes(&text, chunk, (size_t)n);
    if (n < 0)
        return error_errno(e, "read <stdin>");
    if (!buf_ok(&text))
        return error_set(e, ERROR_LIMIT, "<stdin> is over the limit of %u bytes", YAML_MAX_BYTES);
    buf_add(&text, "");
    *ret_len = text.len;
    *ret_text = buf_take(&text);
    return 0;
}

/* The one TrainingJob among the documents; a lone document of another kind is taken too, so that its kind is complained of. */
static int pick_document(const struct yaml_doc *doc, const cJSON **ret_tree, struct error *e)
{
    const cJSON *found = NULL;

    for (size_t i = 0; i < yaml_count(doc); i++) {
        const cJSON *tree = yaml_tree(doc, i);
        if (strcmp(json_text(tree, "kind", ""), JOB_KIND) != 0)
            continue;
        if (found != NULL)
            return error_set(e, ERROR_INVALID, "%.100s:%d: a second TrainingJob; give each a file of its own", yaml_name(doc),
                             yaml_place_of(doc, tree).line);
        found = tree;
    }
    if (found == NULL && yaml_count(doc) == 0)
        return error_set(e, ERROR_INVALID, "%.100s is empty; expected a TrainingJob (apiVersion: %s)", yaml_name(doc), JOB_API_VERSION);
    if (found == NULL && yaml_count(doc) > 1)
        return error_set(e, ERROR_INVALID, "%.100s: none of its %zu documents is of kind TrainingJob", yaml_name(doc), yaml_count(doc));
    *ret_tree = found != NULL ? found : yaml_tree(doc, 0);
    return 0;
}

int manifest_read(const char *path, struct yaml_doc **ret_doc, struct error *e)
{
    bool from_stdin = strcmp(path, "-") == 0;
    auto_free char *text = NULL;
    size_t len = 0;

    if ((from_stdin ? read_stdin(&text, &len, e) : fs_read(path, YAML_MAX_BYTES, &text, &len, e)) < 0)
        return -1;
    return yaml_parse(from_stdin ? "<stdin>" : path, text, len, ret_doc, e);
}

int manifest_open(const char *path, struct yaml_doc **ret_doc, const cJSON **ret_tree, struct error *e)
{
    auto_yaml struct yaml_doc *doc = NULL;
    const cJSON *tree = NULL;

    if (manifest_read(path, &doc, e) < 0 || pick_document(doc, &tree, e) < 0)
        return -1;
    *ret_tree = tree;
    *ret_doc = TAKE(doc);
    return 0;
}
