#include "cli/container.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/mem.h"
#include "job/pod.h"

void container_release(struct container_process *c)
{
    for (size_t i = 0; c->argv && c->argv[i]; i++)
        free(c->argv[i]);
    free(c->argv);
    process_environment_release(&c->environment);
    free(c->directory);
    *c = (struct container_process){ .argv = NULL };
}

static const cJSON *find(const cJSON *pod, const char *name)
{
    static const char *const LISTS[] = { "spec.containers", "spec.initContainers" };
    for (size_t i = 0; i < COUNT(LISTS); i++) {
        const cJSON *c;
        cJSON_ArrayForEach(c, json_at(pod, LISTS[i]))
            if (strcmp(json_text(c, "name", ""), name) == 0)
                return c;
    }
    return NULL;
}

/* ---- environment ---- */

static const char *field_value(const char *path, const struct container_facts *facts)
{
    const struct { const char *path, *value; } ROWS[] = {
        { "metadata.name", facts->pod }, { "metadata.namespace", facts->namespace }, { "metadata.uid", facts->uid },
        { "status.podIP", facts->address }, { "status.hostIP", "127.0.0.1" }, { "spec.nodeName", "localhost" },
    };
    for (size_t i = 0; i < COUNT(ROWS); i++)
        if (strcmp(ROWS[i].path, path) == 0)
            return ROWS[i].value;
    return NULL;
}

/* A variable from a Secret or ConfigMap has its value in this machine's environment, or none. */
static int reference(const cJSON *row, const char *name, const struct container_facts *facts,
                     struct process_environment *environment, struct error *e)
{
    const char *path = json_text(row, "valueFrom.fieldRef.fieldPath", NULL);
    const char *value = path ? field_value(path, facts) : NULL;
    if (value)
        process_environment_set(environment, name, value);
    else if (!process_environment_get(environment, name))
        return error_set(e, ERROR_INVALID, "env %s has a valueFrom that needs a cluster; on one machine set %s in the environment "
                         "of 'ringmaster run'", name, name);
    return 0;
}

/* What the pod says goes first, then what the runner's own environment had. */
static void python(struct process_environment *environment, const char *inherited_path)
{
    const char *path = process_environment_get(environment, "PYTHONPATH");
    if (path && inherited_path && *inherited_path && strcmp(path, inherited_path) != 0) {
        auto_free char *both = xasprintf("%s:%s", path, inherited_path);
        process_environment_set(environment, "PYTHONPATH", both);
    }
}

static int environment_read(const cJSON *container, const struct container_facts *facts, struct process_environment *ret,
                            cJSON **ret_known, struct error *e)
{
    process_environment_inherit(ret);
    auto_free char *inherited_path = xstrdup(process_environment_get(ret, "PYTHONPATH"));
    auto_json cJSON *known = json_array(); /* {name, value} in order, for $(NAME) */
    const cJSON *row;
    cJSON_ArrayForEach(row, json_at(container, "env")) {
        const char *name = json_text(row, "name", ""), *value = json_text(row, "value", NULL);
        if (!value && json_at(row, "valueFrom")) {
            if (reference(row, name, facts, ret, e) < 0)
                return -1;
        } else {
            auto_free char *expanded = environment_expand(value ? value : "", known);
            process_environment_set(ret, name, expanded);
        }
        cJSON *entry = json_object();
        json_put_text(entry, "name", name);
        json_put_text(entry, "value", process_environment_get(ret, name));
        json_append(known, entry);
    }
    python(ret, inherited_path);
    *ret_known = TAKE(known);
    return 0;
}

/* ---- command ---- */

struct words { char **items; size_t count; };

static void add_word(struct words *w, char *word)
{
    w->items = xrealloc(w->items, w->count + 2, sizeof *w->items);
    w->items[w->count++] = word;
    w->items[w->count] = NULL;
}

static void add_words(struct words *w, const cJSON *list, const cJSON *known)
{
    const cJSON *word;
    cJSON_ArrayForEach(word, list)
        if (cJSON_IsString(word))
            add_word(w, environment_expand(word->valuestring, known));
}

static bool is_launcher(const char *path)
{
    const char *slash = strrchr(path, '/');
    return strcmp(slash ? slash + 1 : path, "ringmaster-launch") == 0;
}

/* On a cluster the launcher is PID 1; here it must end with the runner, so it gets one flag more. */
static void command_read(const cJSON *container, const char *launcher, const char *argv0, const cJSON *known, struct words *ret)
{
    struct words own = { .items = NULL };
    add_words(&own, json_at(container, "command"), known);
    add_words(&own, json_at(container, "args"), known);
    size_t i = 0;
    if (!launcher) {
        add_word(ret, xstrdup(argv0));
    } else {
        add_word(ret, xstrdup(launcher));
        add_word(ret, xstrdup("--die-with-parent"));
        if (own.count && is_launcher(own.items[0]))
            for (i = 1; i < own.count && strcmp(own.items[i], "--") != 0; i++)
                add_word(ret, xstrdup(own.items[i]));
        else
            add_word(ret, xstrdup("--no-sidecar"));
        if (i == 0)
            add_word(ret, xstrdup("--"));
        for (; i < own.count; i++)
            add_word(ret, xstrdup(own.items[i]));
    }
    for (size_t k = 0; k < own.count; k++)
        free(own.items[k]);
    free(own.items);
}

static int directory_read(const cJSON *container, const cJSON *known, char **ret, struct error *e)
{
    struct stat st;
    const char *text = json_text(container, "workingDir", NULL);
    if (!text || !*text)
        return 0;
    auto_free char *path = environment_expand(text, known);
    if (stat(path, &st) < 0 || !S_ISDIR(st.st_mode))
        return error_set(e, ERROR_INVALID, "workingDir %.100s of container %.60s is no directory on this machine; make it, or leave "
                         "workingDir out to run where 'ringmaster run' was started", path, json_text(container, "name", ""));
    *ret = TAKE(path);
    return 0;
}

int container_read(const cJSON *pod, const char *name, const char *launcher, const char *argv0,
                   const struct container_facts *facts, struct container_process *ret, struct error *e)
{
    const cJSON *container = find(pod, name);
    auto_json cJSON *known = NULL;
    struct container_process c = { .argv = NULL };
    struct words words = { .items = NULL };
    if (!container)
        return error_set(e, ERROR_BUG, "pod %s has no container %s", facts->pod, name);
    if (environment_read(container, facts, &c.environment, &known, e) < 0 || directory_read(container, known, &c.directory, e) < 0) {
        container_release(&c);
        return -1;
    }
    command_read(container, launcher, argv0, known, &words);
    c.argv = words.items;
    *ret = c;
    return 0;
}

/* ---- what has no meaning here ---- */

void container_notes(const cJSON *template, const char *main_container, struct buf *out)
{
    const cJSON *c;
    if (cJSON_GetArraySize(json_at(template, "spec.volumes")) > 0)
        buf_add(out, "volumes are not mounted: paths are those of this machine\n");
    cJSON_ArrayForEach(c, json_at(template, "spec.initContainers"))
        buf_addf(out, "init container %s is not run\n", json_text(c, "name", ""));
    cJSON_ArrayForEach(c, json_at(template, "spec.containers")) {
        if (strcmp(json_text(c, "name", ""), main_container) != 0)
            buf_addf(out, "container %s is not run: only %s is\n", json_text(c, "name", ""), main_container);
        else if (json_at(c, "envFrom"))
            buf_addf(out, "envFrom of container %s is not read: set its variables in the environment of 'ringmaster run'\n",
                     main_container);
    }
}
