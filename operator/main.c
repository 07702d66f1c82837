/* ringmaster-operator — runs the TrainingJobs of a cluster. */

#include <signal.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crypto.h"
#include "base/log.h"
#include "base/mem.h"
#include "operator/controller.h"
#include "operator/surface.h"
#include "operator/version.h"

#define EXIT_USAGE 2
#define IDENTITY_MAX 200
#define MEASURE_EVERY_MS 1000
#define METRICS_MAX (24u << 20)    /* a thousand namespaces fit, each with failed jobs of many reasons */
#define JOB_METRICS_MAX (8u << 20) /* some 10,000 ranks */
#define REST_MS 5000            /* for what is under way, after SIGTERM */

struct program {
    struct options options;
    struct loop *loop;
    struct kube_config *config;
    struct kube_client *client;
    struct kube_elector *elector;
    struct version_query *version;
    struct authority *authority; /* NULL: the coordinators' channel is in clear */
    struct controller *controller;
    struct surface *surface;
    struct loop_timer *tick;
    struct metrics metrics;
    struct outcomes *outcomes;
    uint64_t trimmed_passes;     /* how many looks there had been when memory was last given back */
    char identity[IDENTITY_MAX];
    bool version_known, leading, ending;
    int64_t give_up_ms;
    int code;
};

/* ---- the coordinators' channel ---------------------------------------------------------------------------------------- */

static bool may_write(void *ctx)
{
    const struct program *p = ctx;

    return p->leading && (p->elector == NULL || kube_elector_held(p->elector));
}

static void on_authority(void *ctx)
{
    struct program *p = ctx;

    if (p->surface != NULL)
        surface_show_certificate(p->surface, &authority_get(p->authority)->serving);
    if (p->controller != NULL)
        controller_authority_changed(p->controller);
}

static bool say(void *ctx, const struct kube_key *job, const char *text)
{
    struct program *p = ctx;

    return p->surface != NULL && surface_say(p->surface, job, text);
}

static const char *own_namespace(const struct program *p)
{
    const char *given = p->options.lease_namespace;

    return given != NULL && given[0] != '\0' ? given : p->config->ns;
}

static int start_authority(struct program *p, struct error *e)
{
    const struct options *o = &p->options;
    struct authority_def def = { .ns = own_namespace(p), .name = o->tls_secret, .host = o->control_host, .lifetime_ms = o->certificate_ms,
                                 .may_write = may_write, .changed = on_authority, .ctx = p };

    return o->control_host != NULL ? authority_new(p->loop, p->client, &def, &p->authority, e) : 0;
}

static int start_surface(struct program *p, struct error *e)
{
    const struct options *o = &p->options;
    struct surface_options options = { .address = o->listen_address, .port = (int)o->listen_port, .control_port = (int)o->control_port,
                                       .control_address = o->control_address != NULL ? o->control_address : "" };

    if (o->listen_port == 0)
        return 0;
    controller_set_say(p->controller, say, p);
    return surface_new(p->loop, &options, p->controller, &p->surface, e);
}

/* ---- leading ---------------------------------------------------------------------------------------------------------- */

static void lead(struct program *p)
{
    p->leading = true;
    if (p->authority != NULL)
        authority_look(p->authority);
    controller_lead(p->controller);
    loop_timer_at(p->tick, clock_mono_ms()); /* coordinators are let in from now on */
}

static void on_lease(void *ctx, bool held)
{
    struct program *p = ctx;

    if (held) {
        log_info("leading", KV("identity", p->identity));
        lead(p);
    } else if (!p->ending) {
        /* Another may lead by now. Starting anew is the one way that leaves nothing behind. */
        log_error("the lease is lost, so this process ends; it is started again and waits for its turn");
        p->code = 1;
        loop_stop(p->loop);
    }
}

static void on_lease_trouble(void *ctx, const struct error *why)
{
    (void)ctx;
    log_warn_from("lease not read or written", why);
}

static int start_elector(struct program *p, struct error *e)
{
    const struct options *o = &p->options;
    uint64_t seed = 0;

    if (!o->leader_elect) {
        lead(p);
        return 0;
    }
    if (crypto_random(&seed, sizeof seed, e) < 0)
        return -1;
    struct kube_elector_def def = {
        .ns = own_namespace(p),
        .name = o->lease_name,
        .lease = { .identity = p->identity, .duration_ms = o->lease_duration_ms, .renew_deadline_ms = o->lease_renew_ms,
                   .retry_ms = o->lease_retry_ms, .seed = seed },
        .changed = on_lease, .trouble = on_lease_trouble, .ctx = p };
    return kube_elector_new(p->loop, p->client, &def, &p->elector, e);
}

/* Nobody stands for election who could not work at once: pods look different in an old cluster, so it has to be known which this is,
 * and one that led with empty caches would keep a replica whose caches are full from taking over. */
static void stand(struct program *p)
{
    struct error e = ERROR_INIT;

    if (p->ending || p->leading || p->elector != NULL || !p->version_known || !controller_synced(p->controller))
        return;
    if (start_elector(p, &e) == 0)
        return;
    log_error_from("the operator cannot start", &e);
    p->code = 1;
    loop_stop(p->loop);
}

static void on_version(void *ctx, bool has_native_sidecars)
{
    struct program *p = ctx;

    p->options.no_native_sidecars = !has_native_sidecars;
    p->version_known = true;
    stand(p);
}

static void on_synced(void *ctx)
{
    stand(ctx);
}

/* ---- ending ----------------------------------------------------------------------------------------------------------- */

static void on_released(void *ctx)
{
    loop_stop(((struct program *)ctx)->loop);
}

static void on_signal(void *ctx, int signal_number)
{
    struct program *p = ctx;

    if (p->ending) {
        loop_stop(p->loop);
        return;
    }
    log_info("ending: what is under way is finished, then the lease is given up", KVI("signal", signal_number));
    p->ending = true;
    p->give_up_ms = clock_mono_ms() + REST_MS;
    controller_rest(p->controller);
    loop_timer_at(p->tick, clock_mono_ms());
}

static void end_when_idle(struct program *p)
{
    if (!controller_idle(p->controller) && clock_mono_ms() < p->give_up_ms) {
        loop_timer_at(p->tick, clock_mono_ms() + 20);
        return;
    }
    if (p->elector == NULL)
        loop_stop(p->loop);
    else
        kube_elector_release(p->elector, on_released, p);
}

/* ---- every second ----------------------------------------------------------------------------------------------------- */

static void measure_heap(struct metrics *m)
{
    struct mallinfo2 info = mallinfo2();

    m->heap_bytes = info.uordblks + info.hblkhd;
    m->heap_free_bytes = info.fordblks;
}

/* After work, when nothing is under way: what lies free between what is kept is given back, a few milliseconds for all of it. */
static void give_back_memory(struct program *p)
{
    if (p->trimmed_passes == p->metrics.passes.count || !controller_idle(p->controller))
        return;
    p->trimmed_passes = p->metrics.passes.count;
    (void)malloc_trim(0);
}

/* What the surface shows from now on. Where the jobs' own figures do not fit all of them are left out, and a figure says so. */
static void tell_surface(struct program *p)
{
    struct buf text = BUF_INIT(METRICS_MAX);
    auto_buf struct buf jobs = BUF_INIT(JOB_METRICS_MAX);

    p->metrics.coordinators = surface_coordinators(p->surface);
    if (p->options.job_metrics)
        controller_describe_jobs(p->controller, &jobs);
    p->metrics.job_metrics_left_out = !buf_ok(&jobs);
    metrics_format(&p->metrics, &text);
    outcomes_format(p->outcomes, &text);
    if (buf_ok(&jobs))
        buf_add_bytes(&text, jobs.text, jobs.len);
    surface_tell(p->surface, p->metrics.leading, p->metrics.synced, &text);
}

static void on_tick(void *ctx)
{
    struct program *p = ctx;

    if (p->ending) {
        end_when_idle(p);
        return;
    }
    give_back_memory(p);
    controller_measure(p->controller, &p->metrics);
    measure_heap(&p->metrics);
    if (p->surface != NULL)
        tell_surface(p);
    loop_timer_at(p->tick, clock_mono_ms() + MEASURE_EVERY_MS);
}

/* The client's fence. What an orderly end leaves under way, Events, may go on its way while the lease is given up. */
static bool holds_still(void *ctx)
{
    const struct program *p = ctx;

    return !p->leading || p->ending || p->elector == NULL || kube_elector_held(p->elector);
}

/* ---- life ------------------------------------------------------------------------------------------------------------- */

/* Unique for each start: a process that is started again under the same name does not hold what the one before held. */
static int make_identity(struct program *p, struct error *e)
{
    char host[100] = "operator", random_text[17];
    uint8_t bytes[8];

    if (crypto_random(bytes, sizeof bytes, e) < 0)
        return -1;
    crypto_hex(bytes, sizeof bytes, random_text);
    (void)gethostname(host, sizeof host - 1);
    const char *name = p->options.identity != NULL && p->options.identity[0] != '\0' ? p->options.identity : host;
    (void)snprintf(p->identity, sizeof p->identity, "%.150s_%s", name, random_text);
    return 0;
}

static int start(struct program *p, struct error *e)
{
    static const int SIGNALS[] = { SIGINT, SIGTERM };
    const struct options *o = &p->options;
    struct kube_config_source source;
    struct kube_client_options client = { .max_in_flight = (uint32_t)o->max_requests, .may_write = holds_still, .ctx = p };

    (void)signal(SIGPIPE, SIG_IGN);
    p->outcomes = outcomes_new();
    kube_config_source(&source);
    source.kubeconfig = o->kubeconfig;
    source.context = o->context;
    if (loop_new(&p->loop, e) < 0 || loop_signals(p->loop, SIGNALS, COUNT(SIGNALS), on_signal, p, e) < 0 || make_identity(p, e) < 0)
        return -1;
    if (kube_config_load(&source, &p->config, e) < 0 || kube_client_new(p->loop, p->config, &client, &p->client, e) < 0)
        return -1;
    log_info("starting", KV("version", RINGMASTER_VERSION), KV("server", p->config->server), KV("identity", p->identity),
             KV("namespaces", o->namespace_count > 0 ? o->namespaces : "all"));
    if (start_authority(p, e) < 0)
        return -1;
    struct controller_def def = { .options = o, .client = p->client, .elector = &p->elector, .instance = p->identity, .authority = p->authority,
                                  .metrics = &p->metrics, .outcomes = p->outcomes, .synced = on_synced, .ctx = p };
    if (controller_new(p->loop, &def, &p->controller, e) < 0 || start_surface(p, e) < 0)
        return -1;
    p->tick = loop_timer_new(p->loop, on_tick, p);
    loop_timer_at(p->tick, clock_mono_ms());
    p->version = version_ask(p->loop, p->client, on_version, p);
    return 0;
}

static void stop(struct program *p)
{
    surface_free(p->surface);
    version_free(p->version);
    controller_free(p->controller);
    authority_free(p->authority);
    kube_elector_free(p->elector);
    kube_client_free(p->client);
    kube_config_free(p->config);
    outcomes_free(p->outcomes);
    loop_timer_free(p->tick);
    if (p->loop != NULL)
        loop_free(p->loop);
}

static int run(struct program *p)
{
    struct error e = ERROR_INIT;

    if (start(p, &e) < 0) {
        log_error_from("the operator cannot start", &e);
        p->code = 1;
    } else if (loop_run(p->loop, &e) < 0) {
        log_error_from("the operator cannot go on", &e);
        p->code = 1;
    }
    stop(p);
    return p->code;
}

/* glibc raises by itself what it keeps of freed memory, to twice the largest block that it has seen: after the first long list
 * nothing would be given back any more. */
static void memory_setup(void)
{
    (void)mallopt(M_MMAP_THRESHOLD, 256 << 10);
    (void)mallopt(M_TRIM_THRESHOLD, 1 << 20);
    (void)mallopt(M_ARENA_MAX, 2);
}

int main(int argc, char **argv)
{
    struct program p = { .code = 0 };
    struct error e = ERROR_INIT;
    bool help = false;
    int code = 0;

    memory_setup();
    log_setup("operator", NULL, LOG_INFO, false);
    if (options_read(argc, argv, &p.options, &help, &e) != 0) {
        (void)fprintf(stderr, "ringmaster-operator: %s\n", e.text);
        options_release(&p.options);
        return EXIT_USAGE;
    }
    log_setup("operator", NULL, (enum log_level)p.options.log_level, p.options.log_json);
    if (help)
        options_help(stdout);
    else if (p.options.version)
        (void)printf("ringmaster-operator %s\n", RINGMASTER_VERSION);
    else
        code = run(&p);
    options_release(&p.options);
    return code;
}
