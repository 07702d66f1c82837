/*
 * kube_client_check — lib/kube against a real API server, driven by test_kube_client.py.
 *
 *   verbs NS             every verb, and what the server refuses; one line "ok NAME" each, ends with code 1 at the first that is not
 *   flood NS COUNT       creates and deletes COUNT ConfigMaps, as many at a time as the client allows; prints how fast
 *   follow NS [PAGE]     an informer on ConfigMaps; PAGE: lists pages of that size, no streaming. Commands on standard input:
 *                        "dump" prints name=value of all, sorted by nobody, and a line "."; "stats"; "quit"
 *   lead NS NAME ID      an elector with a short lease; prints "held" and "lost"; gives the lease up at SIGTERM
 *   discover             which resources are there
 *
 * The cluster is that of KUBECONFIG.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "kube/discovery.h"
#include "kube/elector.h"
#include "kube/event.h"
#include "kube/informer.h"
#include "kube/line.h"

static const struct kube_resource CONFIG_MAPS = { "", "v1", "configmaps", "ConfigMap", false };
static const struct kube_resource NAMESPACES = { "", "v1", "namespaces", "Namespace", true };
static const struct kube_resource DEPLOYMENTS = { "apps", "v1", "deployments", "Deployment", false };
static const struct kube_resource WORKLOADS = { "kueue.x-k8s.io", "v1beta1", "workloads", "Workload", false };
static const struct kube_resource NO_SUCH = { "apps", "v1", "unicorns", "Unicorn", false };

static struct loop *loop;
static struct kube_client *client;
static const char *ns;

static void must(int code, const struct error *e)
{
    if (code == 0)
        return;
    fprintf(stderr, "%s\n", e->text);
    exit(1);
}

/* ---- verbs ------------------------------------------------------------------------------------------------------------- */

struct answer { enum error_kind kind; int status; bool already; cJSON *object; char text[320]; };

static void on_answer(void *ctx, struct kube_reply *reply)
{
    struct answer *a = ctx;

    a->kind = reply->error != NULL ? reply->error->kind : ERROR_NONE;
    a->status = reply->http_status;
    a->already = reply->already_exists;
    a->object = TAKE(reply->object);
    snprintf(a->text, sizeof a->text, "%s", reply->error != NULL ? reply->error->text : "");
    loop_stop(loop);
}

static struct answer ask(struct kube_request r)
{
    struct answer a = { .kind = ERROR_BUG };
    struct error e;

    must(kube_client_send(client, &r, on_answer, &a, NULL, &e), &e);
    must(loop_run(loop, &e), &e);
    return a;
}

static cJSON *config_map(const char *name, const char *value)
{
    cJSON *o = json_object(), *m = json_object(), *d = json_object();

    json_put_text(o, "apiVersion", "v1");
    json_put_text(o, "kind", "ConfigMap");
    json_put(o, "metadata", m);
    json_put_text(m, "name", name);
    json_put(o, "data", d);
    json_put_text(d, "value", value);
    return o;
}

static void expect(const char *name, bool good, const struct answer *a)
{
    printf("%s %s%s%s\n", good ? "ok" : "FAILED", name, good ? "" : ": ", good ? "" : a->text);
    if (!good)
        exit(1);
}

static void check_writes(void)
{
    auto_json cJSON *body = config_map("a", "one"), *patch = NULL;
    struct answer a = ask((struct kube_request){ .verb = KUBE_CREATE, .resource = &CONFIG_MAPS, .ns = ns, .body = body });
    struct error e;
    char uid[KUBE_UID_MAX], version[KUBE_VERSION_MAX];

    snprintf(uid, sizeof uid, "%s", kube_uid(a.object));
    snprintf(version, sizeof version, "%s", kube_version(a.object));
    expect("create", a.kind == ERROR_NONE && uid[0] != '\0', &a);
    cJSON_Delete(a.object);
    a = ask((struct kube_request){ .verb = KUBE_CREATE, .resource = &CONFIG_MAPS, .ns = ns, .body = body });
    expect("create of what is there is a conflict that says so", a.kind == ERROR_CONFLICT && a.already, &a);
    a = ask((struct kube_request){ .verb = KUBE_GET, .resource = &CONFIG_MAPS, .ns = ns, .name = "a" });
    expect("get", a.kind == ERROR_NONE && strcmp(json_text(a.object, "data.value", ""), "one") == 0, &a);
    cJSON_Delete(a.object);

    must(json_parse("{\"data\":{\"value\":\"two\"}}", 24, &patch, &e), &e);
    a = ask((struct kube_request){ .verb = KUBE_MERGE_PATCH, .resource = &CONFIG_MAPS, .ns = ns, .name = "a", .body = patch });
    expect("merge patch", a.kind == ERROR_NONE && strcmp(json_text(a.object, "data.value", ""), "two") == 0, &a);
    auto_json cJSON *now = a.object;
    auto_json cJSON *finalizer = kube_finalizer_patch(now, "ringmaster.dev/test", true);
    a = ask((struct kube_request){ .verb = KUBE_JSON_PATCH, .resource = &CONFIG_MAPS, .ns = ns, .name = "a", .body = finalizer });
    expect("json patch adds a finalizer", a.kind == ERROR_NONE && kube_has_finalizer(a.object, "ringmaster.dev/test"), &a);
    auto_json cJSON *with = a.object;
    a = ask((struct kube_request){ .verb = KUBE_JSON_PATCH, .resource = &CONFIG_MAPS, .ns = ns, .name = "a", .body = finalizer });
    expect("json patch with a test that does not hold is refused", a.kind == ERROR_INVALID, &a);
    auto_json cJSON *without = kube_finalizer_patch(with, "ringmaster.dev/test", false);
    a = ask((struct kube_request){ .verb = KUBE_JSON_PATCH, .resource = &CONFIG_MAPS, .ns = ns, .name = "a", .body = without });
    expect("json patch removes it", a.kind == ERROR_NONE && !kube_has_finalizer(a.object, "ringmaster.dev/test"), &a);
    cJSON_Delete(a.object);

    auto_json cJSON *old = config_map("a", "three");
    json_put_text(cJSON_GetObjectItemCaseSensitive(old, "metadata"), "resourceVersion", version);
    a = ask((struct kube_request){ .verb = KUBE_UPDATE, .resource = &CONFIG_MAPS, .ns = ns, .name = "a", .body = old });
    expect("update of an old version is a conflict", a.kind == ERROR_CONFLICT && !a.already, &a);
    auto_json cJSON *apply = config_map("a", "applied");
    a = ask((struct kube_request){ .verb = KUBE_APPLY, .resource = &CONFIG_MAPS, .ns = ns, .name = "a", .body = apply, .field_manager = "check" });
    expect("apply of another manager's field is a conflict", a.kind == ERROR_CONFLICT, &a);
    a = ask((struct kube_request){ .verb = KUBE_APPLY, .resource = &CONFIG_MAPS, .ns = ns, .name = "a", .body = apply, .field_manager = "check",
                                   .force = true, .want = KUBE_WANT_METADATA });
    expect("forced apply, metadata alone", a.kind == ERROR_NONE && strcmp(json_text(a.object, "kind", ""), "PartialObjectMetadata") == 0 &&
           json_at(a.object, "data") == NULL, &a);
    cJSON_Delete(a.object);
    a = ask((struct kube_request){ .verb = KUBE_DELETE, .resource = &CONFIG_MAPS, .ns = ns, .name = "a", .delete_uid = "another" });
    expect("delete of another uid is a conflict", a.kind == ERROR_CONFLICT, &a);
    a = ask((struct kube_request){ .verb = KUBE_DELETE, .resource = &CONFIG_MAPS, .ns = ns, .name = "a", .delete_uid = uid,
                                   .propagation = KUBE_BACKGROUND, .has_grace = true, .want = KUBE_WANT_NOTHING });
    expect("delete", a.kind == ERROR_NONE && a.object == NULL, &a);
    a = ask((struct kube_request){ .verb = KUBE_GET, .resource = &CONFIG_MAPS, .ns = ns, .name = "a" });
    expect("get of what is gone", a.kind == ERROR_NOT_FOUND && a.status == 404, &a);
}

static void check_lists(void)
{
    struct answer a;
    char name[32];

    for (int i = 0; i < 7; i++) {
        snprintf(name, sizeof name, "page-%d", i);
        auto_json cJSON *body = config_map(name, "x"), *labels = json_object();
        json_put_text(labels, "batch", i % 2 != 0 ? "odd" : "even");
        json_put(cJSON_GetObjectItemCaseSensitive(body, "metadata"), "labels", TAKE(labels));
        a = ask((struct kube_request){ .verb = KUBE_CREATE, .resource = &CONFIG_MAPS, .ns = ns, .body = body, .want = KUBE_WANT_NOTHING });
        expect("create without an answer's object", a.kind == ERROR_NONE && a.object == NULL, &a);
    }
    int seen = 0, pages = 0;
    char token[4096] = "";
    do {
        a = ask((struct kube_request){ .verb = KUBE_LIST, .resource = &CONFIG_MAPS, .ns = ns, .label_selector = "batch in (odd,even)", .limit = 3,
                                       .continue_token = token[0] != '\0' ? token : NULL });
        expect("list of a page", a.kind == ERROR_NONE, &a);
        seen += cJSON_GetArraySize(json_at(a.object, "items"));
        snprintf(token, sizeof token, "%s", json_text(a.object, "metadata.continue", ""));
        cJSON_Delete(a.object);
        pages++;
    } while (token[0] != '\0');
    expect("seven in three pages", seen == 7 && pages == 3, &a);
    a = ask((struct kube_request){ .verb = KUBE_DELETE_COLLECTION, .resource = &CONFIG_MAPS, .ns = ns, .label_selector = "batch=odd",
                                   .want = KUBE_WANT_NOTHING });
    expect("delete by label", a.kind == ERROR_NONE, &a);
    a = ask((struct kube_request){ .verb = KUBE_LIST, .resource = &CONFIG_MAPS, .ns = ns, .label_selector = "batch" });
    expect("the others are left", cJSON_GetArraySize(json_at(a.object, "items")) == 4, &a);
    cJSON_Delete(a.object);
    a = ask((struct kube_request){ .verb = KUBE_LIST, .resource = &CONFIG_MAPS, .ns = ns, .max_bytes = 100 });
    expect("an answer over the bound", a.kind == ERROR_LIMIT, &a);
    a = ask((struct kube_request){ .verb = KUBE_LIST, .resource = &CONFIG_MAPS, .ns = ns, .limit = 1, .continue_token = "nonsense" });
    expect("a token that is none", a.kind == ERROR_INVALID, &a);
    a = ask((struct kube_request){ .verb = KUBE_LIST, .resource = &NO_SUCH, .ns = ns });
    expect("a resource that is not served", a.kind == ERROR_NOT_FOUND, &a);
    a = ask((struct kube_request){ .verb = KUBE_GET, .path = "/version" });
    expect("a path", a.kind == ERROR_NONE && json_text(a.object, "gitVersion", NULL) != NULL, &a);
    cJSON_Delete(a.object);
    auto_json cJSON *bad = config_map("Not_A_Name", "x");
    a = ask((struct kube_request){ .verb = KUBE_CREATE, .resource = &CONFIG_MAPS, .ns = ns, .body = bad });
    expect("an object that is refused, with the server's words", a.kind == ERROR_INVALID && strstr(a.text, "Not_A_Name") != NULL, &a);
}

/* ---- flood ------------------------------------------------------------------------------------------------------------- */

static size_t left, went_wrong;

static void on_flood(void *ctx, struct kube_reply *reply)
{
    (void)ctx;
    if (reply->error != NULL && went_wrong++ == 0)
        fprintf(stderr, "%s\n", reply->error->text);
    if (--left == 0)
        loop_stop(loop);
}

static void flood(size_t count)
{
    struct error e;
    char name[32];

    for (int deleting = 0; deleting < 2; deleting++) {
        int64_t begun = clock_mono_ms();
        left = count;
        for (size_t i = 0; i < count; i++) {
            snprintf(name, sizeof name, "flood-%zu", i);
            auto_json cJSON *body = config_map(name, "x");
            struct kube_request r = { .verb = deleting ? KUBE_DELETE : KUBE_CREATE, .resource = &CONFIG_MAPS, .ns = ns, .want = KUBE_WANT_NOTHING,
                                      .name = deleting ? name : NULL, .body = deleting ? NULL : body };
            must(kube_client_send(client, &r, on_flood, NULL, NULL, &e), &e);
        }
        must(loop_run(loop, &e), &e);
        int64_t took = clock_mono_ms() - begun;
        printf("%s %zu in %lld ms: %lld/s, %zu went wrong\n", deleting ? "deleted" : "created", count, (long long)took,
               (long long)count * 1000 / (took > 0 ? took : 1), went_wrong);
    }
}

/* ---- follow ------------------------------------------------------------------------------------------------------------ */

struct map_entry { char value[64]; };
static struct kube_informer *informer;
static struct kube_lines commands;
static uint64_t change_count;

static bool project(void *ctx, const cJSON *object, void *ret_entry)
{
    struct map_entry *m = ret_entry;

    (void)ctx;
    snprintf(m->value, sizeof m->value, "%s", json_text(object, "data.value", ""));
    return strcmp(kube_name(object), "kube-root-ca.crt") != 0;
}

static void on_change(void *ctx, const struct kube_key *key, const void *before, const void *after)
{
    (void)ctx, (void)key, (void)before, (void)after;
    change_count++;
}

static void on_synced(void *ctx)
{
    (void)ctx;
    printf("synced\n");
    fflush(stdout);
}

static void on_trouble(void *ctx, const struct error *why, uint32_t failures)
{
    (void)ctx;
    fprintf(stderr, "trouble %s %u: %s\n", error_kind_name(why->kind), failures, why->text);
}

static void on_command(void *ctx, const char *line, size_t len)
{
    const struct kube_cache *cache = kube_informer_cache(informer);
    struct kube_cache_at at;
    struct kube_informer_stats stats;

    (void)ctx, (void)len;
    if (strcmp(line, "dump") == 0) {
        for (const struct map_entry *m = kube_cache_first(cache, &at); m != NULL; m = kube_cache_next(&at))
            printf("%s=%s\n", kube_entry_name(m), m->value);
    } else if (strcmp(line, "stats") == 0) {
        kube_informer_stats(informer, &stats);
        printf("starts=%llu lists=%llu watches=%llu events=%llu failures=%llu changes=%llu bytes=%zu\n",
               (unsigned long long)stats.starts, (unsigned long long)stats.lists,
               (unsigned long long)stats.watches, (unsigned long long)stats.events, (unsigned long long)stats.failures,
               (unsigned long long)change_count, kube_cache_bytes(cache));
    } else if (strcmp(line, "quit") == 0) {
        loop_stop(loop);
    }
    printf(".\n");
    fflush(stdout);
}

static void on_input(void *ctx, int fd, unsigned events)
{
    char bytes[256];
    struct error e;
    ssize_t got = read(fd, bytes, sizeof bytes);

    (void)ctx, (void)events;
    if (got <= 0 || kube_lines_feed(&commands, bytes, (size_t)got, on_command, NULL, &e) < 0)
        loop_stop(loop);
}

static void follow(uint32_t page)
{
    struct kube_informer_def def = { .resource = &CONFIG_MAPS, .ns = ns, .synced = on_synced, .trouble = on_trouble,
                                     .cache = { .entry_size = sizeof(struct map_entry), .project = project, .changed = on_change },
                                     .watch = { .seed = (uint64_t)clock_mono_ns(), .page = page, .no_streaming = page > 0 } };
    struct loop_source *input;
    struct error e;

    kube_lines_init(&commands, 64, false);
    must(kube_informer_new(loop, client, &def, &informer, &e), &e);
    must(loop_add(loop, STDIN_FILENO, LOOP_READ, on_input, NULL, &input, &e), &e);
    must(loop_run(loop, &e), &e);
    loop_remove(input);
    kube_informer_free(informer);
    kube_lines_release(&commands);
}

/* ---- lead, discover ---------------------------------------------------------------------------------------------------- */

static struct kube_elector *elector;

static void on_lead(void *ctx, bool held)
{
    (void)ctx;
    printf("%s\n", held ? "held" : "lost");
    fflush(stdout);
}

static void on_released(void *ctx)
{
    (void)ctx;
    printf("released\n");
    loop_stop(loop);
}

static void on_signal(void *ctx, int number)
{
    (void)ctx, (void)number;
    kube_elector_release(elector, on_released, NULL);
}

static void lead(const char *name, const char *identity)
{
    struct kube_elector_def def = { .ns = ns, .name = name, .changed = on_lead,
                                    .lease = { .identity = identity, .duration_ms = 6000, .renew_deadline_ms = 4000, .retry_ms = 500, .seed = 1 } };
    struct error e;

    must(loop_signals(loop, (const int[]){ SIGTERM }, 1, on_signal, NULL, &e), &e);
    must(kube_elector_new(loop, client, &def, &elector, &e), &e);
    must(loop_run(loop, &e), &e);
    kube_elector_free(elector);
}

static struct kube_discovery *discovery;

static void on_discovered(void *ctx)
{
    (void)ctx;
    printf("deployments %d\nworkloads %d\nnamespaces %d\n", kube_discovery_served(discovery, &DEPLOYMENTS),
           kube_discovery_served(discovery, &WORKLOADS), kube_discovery_served(discovery, &NAMESPACES));
    loop_stop(loop);
}

static void discover(void)
{
    static const struct kube_resource *const RESOURCES[] = { &DEPLOYMENTS, &WORKLOADS, &NAMESPACES };
    struct kube_discovery_def def = { .resources = RESOURCES, .count = COUNT(RESOURCES), .changed = on_discovered };
    struct error e;

    must(kube_discovery_new(loop, client, &def, &discovery, &e), &e);
    must(loop_run(loop, &e), &e);
    kube_discovery_free(discovery);
}

static void post_events(void)
{
    struct kube_recorder *recorder = kube_recorder_new(client, "check", "check-0", 1);
    struct kube_event event = { .about = { .resource = &CONFIG_MAPS, .uid = "u" }, .reason = "Checked", .message = "again" };
    struct answer a;

    (void)kube_key_set(&event.about.key, ns, "page-0");
    for (int i = 0; i < 3; i++)
        kube_recorder_post(recorder, &event);
    static const struct kube_resource EVENTS = { "", "v1", "events", "Event", false };
    bool counted = false;
    for (int tries = 0; tries < 500 && !counted; tries++) {
        a = ask((struct kube_request){ .verb = KUBE_LIST, .resource = &EVENTS, .ns = ns, .field_selector = "involvedObject.name=page-0" });
        const cJSON *items = json_at(a.object, "items");
        counted = cJSON_GetArraySize(items) == 1 && json_int(cJSON_GetArrayItem(items, 0), "count", 0) == 3;
        cJSON_Delete(a.object);
    }
    expect("three times the same event are one with a count", counted, &a);
    kube_recorder_free(recorder);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    struct kube_config_source source;
    auto_kube_config struct kube_config *config = NULL;
    struct error e;

    ns = argc > 2 ? argv[2] : "default";
    kube_config_source(&source);
    must(loop_new(&loop, &e), &e);
    must(kube_config_load(&source, &config, &e), &e);
    must(kube_client_new(loop, config, NULL, &client, &e), &e);
    if (strcmp(mode, "verbs") == 0) {
        check_writes();
        check_lists();
        post_events();
    } else if (strcmp(mode, "flood") == 0) {
        flood(argc > 3 ? strtoul(argv[3], NULL, 10) : 100);
    } else if (strcmp(mode, "follow") == 0) {
        follow(argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 0);
    } else if (strcmp(mode, "lead") == 0 && argc > 4) {
        lead(argv[3], argv[4]);
    } else if (strcmp(mode, "discover") == 0) {
        discover();
    }
    kube_client_free(client);
    loop_free(loop);
    return went_wrong > 0;
}
