#include "operator/options.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"

#define NAMESPACES_MAX 64

static const char *const LEVELS[] = { "debug", "info", "warn", "error", NULL };

#define TEXT(f) .type = OPT_TEXT, .at = OPT_AT(struct options, f, const char *)
#define INT(f, least, most) .type = OPT_INT, .at = OPT_AT(struct options, f, int64_t), .min = (least), .max = (most), .value = "N"
#define TIME(f, least, most) .type = OPT_DURATION, .at = OPT_AT(struct options, f, int64_t), .min = (least), .max = (most), .value = "TIME"
#define BOOL(f) .type = OPT_BOOL, .at = OPT_AT(struct options, f, bool)

static const struct opt_def OPTIONS[] = {
    { .flag = "namespaces", .env = "RINGMASTER_NAMESPACES", TEXT(namespaces), .value = "LIST",
      .help = "namespaces to work in, comma-separated; all when not given" },
    { .flag = "sidecar-image", .env = "RINGMASTER_SIDECAR_IMAGE", .def = "ringmaster-sidecar:" RINGMASTER_VERSION, TEXT(sidecar_image),
      .value = "IMAGE", .help = "image of the sidecar, where a job does not name one" },
    { .flag = "control-url", .env = "RINGMASTER_CONTROL_URL", TEXT(control_url), .value = "URL",
      .help = "where coordinators reach this program (wss://ringmaster-operator.NAMESPACE.svc:8443); without it they do not report; "
              "with ws:// the channel is not encrypted and stands at --listen" },
    { .flag = "listen-control", .env = "RINGMASTER_LISTEN_CONTROL", .def = ":8443", TEXT(listen_control), .value = "[ADDRESS]:PORT",
      .help = "with a wss:// control URL: where the coordinators' channel is served" },
    { .flag = "tls-secret", .env = "RINGMASTER_TLS_SECRET", .def = "ringmaster-operator-tls", TEXT(tls_secret), .value = "NAME",
      .help = "with a wss:// control URL: Secret, in the Lease's namespace, that keeps this program's own authority and certificate" },
    { .flag = "certificate-lifetime", .env = "RINGMASTER_CERTIFICATE_LIFETIME", .def = "2160h", TIME(certificate_ms, 6000, 365 * 86400000ll),
      .help = "life of the certificate that coordinators are shown; it is renewed when a third is left" },
    { .flag = "listen", .env = "RINGMASTER_LISTEN", .def = ":8080", TEXT(listen), .value = "[ADDRESS]:PORT",
      .help = "where /healthz, /readyz, /metrics and the coordinators' channel are served; :0 for nowhere" },
    { .flag = "job-metrics", .env = "RINGMASTER_JOB_METRICS", BOOL(job_metrics),
      .help = "at /metrics also figures of each job at work and each of its ranks: many labels" },
    { .flag = "max-jobs", .env = "RINGMASTER_MAX_JOBS", .def = "32", INT(max_jobs, 1, 100000),
      .help = "jobs that are worked on at the same time" },
    { .flag = "max-requests", .env = "RINGMASTER_MAX_REQUESTS", .def = "64", INT(max_requests, 1, 4096),
      .help = "requests to the API server at the same time, as long as it does not ask for fewer" },
    { .flag = "watch-nodes", .env = "RINGMASTER_WATCH_NODES", .def = "true", BOOL(watch_nodes),
      .help = "watch nodes, to see their loss as soon as the cluster does; needs a ClusterRole" },
    { .flag = "leader-elect", .env = "RINGMASTER_LEADER_ELECT", .def = "true", BOOL(leader_elect),
      .help = "act only while holding the Lease, so that several replicas may run" },
    { .flag = "lease-name", .env = "RINGMASTER_LEASE_NAME", .def = "ringmaster-operator", TEXT(lease_name), .value = "NAME",
      .help = "name of the Lease" },
    { .flag = "lease-namespace", .env = "POD_NAMESPACE", TEXT(lease_namespace), .value = "NAMESPACE",
      .help = "namespace of the Lease; that of the service account or kubeconfig when not given" },
    { .flag = "lease-duration", .def = "15s", TIME(lease_duration_ms, 2000, 3600000),
      .help = "a leader that was silent for so long is replaced" },
    { .flag = "lease-renew-deadline", .def = "10s", TIME(lease_renew_ms, 1000, 3600000),
      .help = "a leader that could not renew for so long stops; below the duration" },
    { .flag = "lease-retry", .def = "2s", TIME(lease_retry_ms, 200, 3600000), .help = "time between two looks at the Lease" },
    { .flag = "identity", .env = "POD_NAME", TEXT(identity), .value = "NAME",
      .help = "name of this process in the Lease; the host's name when not given" },
    { .flag = "kubeconfig", TEXT(kubeconfig), .value = "FILE",
      .help = "file that says how to reach the API server; else KUBECONFIG, the pod's service account, ~/.kube/config" },
    { .flag = "context", TEXT(context), .value = "NAME", .help = "context of the kubeconfig" },
    { .flag = "log-level", .env = "RINGMASTER_LOG_LEVEL", .def = "info", .type = OPT_ENUM,
      .at = OPT_AT(struct options, log_level, int), .names = LEVELS, .value = "LEVEL", .help = "least level that is logged" },
    { .flag = "log-json", .env = "RINGMASTER_LOG_JSON", BOOL(log_json), .help = "log JSON instead of logfmt" },
    { .flag = "version", BOOL(version), .help = "print the version" },
};

void options_help(FILE *out)
{
    (void)fprintf(out, "Usage: ringmaster-operator [OPTIONS]\n"
                       "Runs the TrainingJobs of a Kubernetes cluster: creates their pods, restarts what failed, keeps their status.\n\n");
    opt_help(OPTIONS, COUNT(OPTIONS), out);
}

static int split_namespaces(struct options *o, struct error *e)
{
    auto_free char *text = xstrdup(o->namespaces != NULL ? o->namespaces : "");
    char *rest = text;

    o->namespace_list = xcalloc(NAMESPACES_MAX, sizeof(char *));
    for (char *ns = strsep(&rest, ","); ns != NULL; ns = strsep(&rest, ",")) {
        if (ns[0] == '\0')
            continue;
        if (!text_is_dns1123_label(ns))
            return error_set(e, ERROR_INVALID, "--namespaces: \"%.80s\" is no name of a namespace", ns);
        if (o->namespace_count == NAMESPACES_MAX)
            return error_set(e, ERROR_INVALID, "--namespaces: more than %d; leave it out to work in all", NAMESPACES_MAX);
        o->namespace_list[o->namespace_count++] = xstrdup(ns);
    }
    return 0;
}

static int split_listen(const char *flag, const char *text, char **ret_address, int64_t *ret_port, struct error *e)
{
    const char *colon = strrchr(text, ':');

    if (colon == NULL || !text_int(colon + 1, ret_port) || *ret_port < 0 || *ret_port > 65535)
        return error_set(e, ERROR_INVALID, "%s: found \"%.80s\", expected [ADDRESS]:PORT", flag, text);
    *ret_address = xstrndup(text, (size_t)(colon - text));
    return 0;
}

/* "wss://HOST[:PORT]": the host is what the certificate is made for. */
static int read_control_url(struct options *o, struct error *e)
{
    static const char CLEAR[] = "ws://", SECURE[] = "wss://";
    const char *url = o->control_url != NULL ? o->control_url : "";
    bool secure = strncmp(url, SECURE, strlen(SECURE)) == 0;

    if (url[0] == '\0' || strncmp(url, CLEAR, strlen(CLEAR)) == 0)
        return 0;
    const char *host = url + strlen(SECURE);
    bool bracket = secure && host[0] == '[';
    size_t len = secure ? strcspn(host += bracket, bracket ? "]" : ":/") : 0;
    if (len == 0)
        return error_set(e, ERROR_INVALID, "--control-url: found \"%.100s\", expected wss://HOST[:PORT] or ws://HOST[:PORT]", url);
    o->control_host = xstrndup(host, len);
    if (split_listen("--listen-control", o->listen_control, &o->control_address, &o->control_port, e) < 0)
        return -1;
    if (o->control_port == 0 || o->listen_port == 0)
        return error_set(e, ERROR_INVALID, "--listen-control, --listen: port 0 serves nobody, and --control-url says that coordinators come");
    return 0;
}

int options_read(int argc, char **argv, struct options *o, bool *ret_help, struct error *e)
{
    int next = 0;

    *o = (struct options){ .kubeconfig = NULL };
    if (opt_parse(OPTIONS, COUNT(OPTIONS), argc, argv, false, o, &next, ret_help, e) != 0)
        return -1;
    if (*ret_help || o->version)
        return 0;
    if (next < argc)
        return error_set(e, ERROR_INVALID, "found \"%.80s\", expected only options; see --help", argv[next]);
    if (o->lease_renew_ms >= o->lease_duration_ms)
        return error_set(e, ERROR_INVALID, "--lease-renew-deadline must be below --lease-duration: the difference is what keeps two leaders apart");
    if (split_namespaces(o, e) < 0 || split_listen("--listen", o->listen, &o->listen_address, &o->listen_port, e) < 0)
        return -1;
    return read_control_url(o, e);
}

void options_release(struct options *o)
{
    for (size_t i = 0; i < o->namespace_count; i++)
        free(o->namespace_list[i]);
    free(o->namespace_list);
    free(o->listen_address);
    free(o->control_address);
    free(o->control_host);
    opt_release(OPTIONS, COUNT(OPTIONS), o);
}
