#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "cli/container.h"

static const struct container_facts FACTS = { .pod = "job-worker-0", .namespace = "default", .uid = "u1", .address = "127.1.0.2" };

static cJSON *pod_of(const char *container)
{
    struct error e = ERROR_INIT;
    cJSON *pod = NULL;
    auto_free char *text = xasprintf("{\"spec\":{\"containers\":[%s],\"initContainers\":[{\"name\":\"ringmaster\",\"command\":"
                                     "[\"/usr/local/bin/ringmaster-sidecar\"],\"env\":[{\"name\":\"RINGMASTER_JOB\",\"value\":\"j\"}]}]}}",
                                     container);
    cr_assert_eq(json_parse(text, strlen(text), &pod, &e), 0, "%s", e.text);
    return pod;
}

static void join(char *const *words, char *ret)
{
    ret[0] = '\0';
    for (size_t i = 0; words[i]; i++) {
        if (i)
            strcat(ret, " ");
        strcat(ret, words[i]);
    }
}

Test(container, the_launcher_of_this_machine_stands_before_the_command)
{
    static const struct { const char *name, *container, *argv; } ROWS[] = {
        { "built", "{\"name\":\"m\",\"command\":[\"/ringmaster/bin/ringmaster-launch\",\"--\",\"python\"],\"args\":[\"t.py\"]}",
          "/x/launch --die-with-parent -- python t.py" },
        { "with its own options", "{\"name\":\"m\",\"command\":[\"/ringmaster/bin/ringmaster-launch\",\"--grace\",\"5s\",\"--\",\"a\",\"--\",\"b\"]}",
          "/x/launch --die-with-parent --grace 5s -- a -- b" },
        { "without a sidecar", "{\"name\":\"m\",\"command\":[\"python\",\"t.py\"]}", "/x/launch --die-with-parent --no-sidecar -- python t.py" },
        { "variables", "{\"name\":\"m\",\"command\":[\"/ringmaster/bin/ringmaster-launch\",\"--\",\"echo\"],\"args\":[\"--hosts=$(H)\",\"$(NO)\",\"$$(H)\"],"
          "\"env\":[{\"name\":\"H\",\"value\":\"a:1,b:2\"}]}", "/x/launch --die-with-parent -- echo --hosts=a:1,b:2 $(NO) $(H)" },
    };
    for (size_t i = 0; i < COUNT(ROWS); i++) {
        struct error e = ERROR_INIT;
        struct container_process c;
        char argv[512];
        auto_json cJSON *pod = pod_of(ROWS[i].container);
        cr_assert_eq(container_read(pod, "m", "/x/launch", NULL, &FACTS, &c, &e), 0, "case %s: %s", ROWS[i].name, e.text);
        join(c.argv, argv);
        cr_expect_str_eq(argv, ROWS[i].argv, "case %s: %s", ROWS[i].name, argv);
        container_release(&c);
    }
}

Test(container, environment_is_the_runners_with_the_pods_on_top)
{
    struct error e = ERROR_INIT;
    struct container_process c;
    setenv("FROM_OUTSIDE", "yes", 1);
    setenv("OVERRIDDEN", "outside", 1);
    setenv("TF_CONFIG", "stale", 1);
    setenv("RINGMASTER_RANK", "7", 1);
    setenv("PYTHONPATH", "/mine", 1);
    setenv("SECRET", "s3", 1);
    auto_json cJSON *pod = pod_of("{\"name\":\"m\",\"env\":[{\"name\":\"OVERRIDDEN\",\"value\":\"pod\"},"
        "{\"name\":\"PYTHONPATH\",\"value\":\"/injected\"},{\"name\":\"IP\",\"valueFrom\":{\"fieldRef\":{\"fieldPath\":\"status.podIP\"}}},"
        "{\"name\":\"SECRET\",\"valueFrom\":{\"secretKeyRef\":{\"name\":\"s\",\"key\":\"k\"}}},{\"name\":\"TWO\",\"value\":\"$(IP)/$(OVERRIDDEN)\"}]}");
    cr_assert_eq(container_read(pod, "m", "/x/launch", NULL, &FACTS, &c, &e), 0, "%s", e.text);
    static const struct { const char *name, *value; } ROWS[] = {
        { "FROM_OUTSIDE", "yes" }, { "OVERRIDDEN", "pod" }, { "TF_CONFIG", NULL }, { "RINGMASTER_RANK", NULL },
        { "PYTHONPATH", "/injected:/mine" }, { "IP", "127.1.0.2" }, { "SECRET", "s3" }, { "TWO", "127.1.0.2/pod" },
    };
    for (size_t i = 0; i < COUNT(ROWS); i++) {
        const char *value = process_environment_get(&c.environment, ROWS[i].name);
        cr_expect((!value && !ROWS[i].value) || (value && ROWS[i].value && strcmp(value, ROWS[i].value) == 0), "%s is %s", ROWS[i].name,
                  value ? value : "unset");
    }
    container_release(&c);
}

Test(container, what_needs_a_cluster_or_a_directory_is_refused_by_name)
{
    static const struct { const char *container, *text; } ROWS[] = {
        { "{\"name\":\"m\",\"env\":[{\"name\":\"TOKEN\",\"valueFrom\":{\"secretKeyRef\":{\"name\":\"s\",\"key\":\"k\"}}}]}",
          "env TOKEN has a valueFrom that needs a cluster" },
        { "{\"name\":\"m\",\"workingDir\":\"/no/such/place\"}", "workingDir /no/such/place of container m is no directory" },
    };
    unsetenv("TOKEN");
    for (size_t i = 0; i < COUNT(ROWS); i++) {
        struct error e = ERROR_INIT;
        struct container_process c;
        auto_json cJSON *pod = pod_of(ROWS[i].container);
        cr_expect_eq(container_read(pod, "m", "/x/launch", NULL, &FACTS, &c, &e), -1);
        cr_expect(strstr(e.text, ROWS[i].text) != NULL, "%s", e.text);
        cr_expect_eq(e.kind, ERROR_INVALID);
    }
}

Test(container, the_sidecar_is_its_program_with_its_options_from_the_environment)
{
    struct error e = ERROR_INIT;
    struct container_process c;
    auto_json cJSON *pod = pod_of("{\"name\":\"m\"}");
    cr_assert_eq(container_read(pod, "ringmaster", NULL, "/x/sidecar", &FACTS, &c, &e), 0, "%s", e.text);
    cr_expect_str_eq(c.argv[0], "/x/sidecar");
    cr_expect_null(c.argv[1]);
    cr_expect_str_eq(process_environment_get(&c.environment, "RINGMASTER_JOB"), "j");
    container_release(&c);
}

Test(container, notes_name_what_has_no_meaning_on_one_machine)
{
    struct error e = ERROR_INIT;
    auto_json cJSON *template = NULL;
    const char *text = "{\"spec\":{\"volumes\":[{\"name\":\"v\"}],\"initContainers\":[{\"name\":\"fetch\"}],"
                       "\"containers\":[{\"name\":\"m\",\"envFrom\":[]},{\"name\":\"board\"}]}}";
    auto_buf struct buf out = BUF_INIT(4096);
    cr_assert_eq(json_parse(text, strlen(text), &template, &e), 0);
    container_notes(template, "m", &out);
    cr_expect_str_eq(buf_text(&out), "volumes are not mounted: paths are those of this machine\n"
                                     "init container fetch is not run\n"
                                     "envFrom of container m is not read: set its variables in the environment of 'ringmaster run'\n"
                                     "container board is not run: only m is\n");
}
