#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kube/request.h"

static const struct kube_resource PODS = { "", "v1", "pods", "Pod", false };
static const struct kube_resource JOBS = { "ringmaster.dev", "v1", "trainingjobs", "TrainingJob", false };
static const struct kube_resource NODES = { "", "v1", "nodes", "Node", true };

static cJSON *const BODY = (cJSON *)1; /* stands for a body in the table */

static const struct { const char *name; struct kube_request r; const char *method, *target, *type; } GOOD[] = {
    { "get", { .verb = KUBE_GET, .resource = &PODS, .ns = "n", .name = "a" }, "GET", "/api/v1/namespaces/n/pods/a", NULL },
    { "get of a cluster's", { .verb = KUBE_GET, .resource = &NODES, .name = "a" }, "GET", "/api/v1/nodes/a", NULL },
    { "status", { .verb = KUBE_MERGE_PATCH, .resource = &JOBS, .ns = "n", .name = "a", .subresource = "status", .body = BODY,
                  .field_manager = "operator" },
      "PATCH", "/apis/ringmaster.dev/v1/namespaces/n/trainingjobs/a/status?fieldManager=operator", "application/merge-patch+json" },
    { "list everywhere", { .verb = KUBE_LIST, .resource = &PODS, .limit = 500, .continue_token = "a+b/c=" }, "GET",
      "/api/v1/pods?continue=a%2Bb%2Fc%3D&limit=500", NULL },
    { "watch", { .verb = KUBE_WATCH, .resource = &PODS, .ns = "n", .label_selector = "a=b,c in (d)", .resource_version = "5",
                 .server_timeout_s = 290, .bookmarks = true },
      "GET", "/api/v1/namespaces/n/pods?watch=true&labelSelector=a%3Db%2Cc%20in%20%28d%29&resourceVersion=5&timeoutSeconds=290"
      "&allowWatchBookmarks=true", NULL },
    { "streaming list", { .verb = KUBE_WATCH, .resource = &PODS, .initial_events = true, .resource_version_match = "NotOlderThan" }, "GET",
      "/api/v1/pods?watch=true&resourceVersionMatch=NotOlderThan&sendInitialEvents=true", NULL },
    { "create", { .verb = KUBE_CREATE, .resource = &JOBS, .ns = "n", .body = BODY, .dry_run = true, .strict = true }, "POST",
      "/apis/ringmaster.dev/v1/namespaces/n/trainingjobs?dryRun=All&fieldValidation=Strict", "application/json" },
    { "apply", { .verb = KUBE_APPLY, .resource = &JOBS, .ns = "n", .name = "a", .body = BODY, .field_manager = "m", .force = true }, "PATCH",
      "/apis/ringmaster.dev/v1/namespaces/n/trainingjobs/a?fieldManager=m&force=true", "application/apply-patch+yaml" },
    { "eviction", { .verb = KUBE_CREATE, .resource = &PODS, .ns = "n", .name = "a", .subresource = "eviction", .body = BODY }, "POST",
      "/api/v1/namespaces/n/pods/a/eviction", "application/json" },
    { "logs", { .verb = KUBE_GET, .resource = &PODS, .ns = "n", .name = "a", .subresource = "log", .raw = true, .query = "follow=true" },
      "GET", "/api/v1/namespaces/n/pods/a/log?follow=true", NULL },
    { "delete", { .verb = KUBE_DELETE, .resource = &PODS, .ns = "n", .name = "a" }, "DELETE", "/api/v1/namespaces/n/pods/a", "application/json" },
    { "delete by label", { .verb = KUBE_DELETE_COLLECTION, .resource = &PODS, .ns = "n", .label_selector = "a=b" }, "DELETE",
      "/api/v1/namespaces/n/pods?labelSelector=a%3Db", "application/json" },
    { "a path", { .verb = KUBE_GET, .path = "/version" }, "GET", "/version", NULL },
    { "a name with a colon", { .verb = KUBE_GET, .resource = &NODES, .name = "a:b c" }, "GET", "/api/v1/nodes/a%3Ab%20c", NULL },
};

Test(request, becomes_http)
{
    for (size_t i = 0; i < COUNT(GOOD); i++) {
        auto_json cJSON *body = json_object();
        struct kube_request r = GOOD[i].r;
        struct kube_http h;
        struct error e = ERROR_INIT;
        if (r.body == BODY)
            r.body = body;
        cr_assert_eq(kube_http_of(&r, &h, &e), 0, "case %s: %s", GOOD[i].name, e.text);
        cr_expect_str_eq(h.method, GOOD[i].method, "case %s", GOOD[i].name);
        cr_expect_str_eq(h.target, GOOD[i].target, "case %s: %s", GOOD[i].name, h.target);
        cr_expect((h.content_type == NULL) == (GOOD[i].type == NULL) && (h.content_type == NULL || strcmp(h.content_type, GOOD[i].type) == 0),
                  "case %s: %s", GOOD[i].name, h.content_type);
        kube_http_release(&h);
    }
}

static const struct { const char *name; struct kube_request r; } BAD[] = {
    { "nothing", { .verb = KUBE_GET } },
    { "no name", { .verb = KUBE_GET, .resource = &PODS, .ns = "n" } },
    { "no namespace", { .verb = KUBE_GET, .resource = &PODS, .name = "a" } },
    { "a namespace too many", { .verb = KUBE_GET, .resource = &NODES, .ns = "n", .name = "a" } },
    { "out of its path", { .verb = KUBE_DELETE, .resource = &PODS, .ns = "n", .name = "../../nodes/a" } },
    { "up", { .verb = KUBE_DELETE, .resource = &PODS, .ns = "..", .name = "a" } },
    { "the empty name, which would be the collection", { .verb = KUBE_DELETE, .resource = &PODS, .ns = "n", .name = "" } },
    { "a collection with a name", { .verb = KUBE_DELETE_COLLECTION, .resource = &PODS, .ns = "n", .name = "a" } },
    { "delete of everything everywhere", { .verb = KUBE_DELETE_COLLECTION, .resource = &PODS } },
    { "no body", { .verb = KUBE_CREATE, .resource = &PODS, .ns = "n" } },
    { "apply without manager", { .verb = KUBE_APPLY, .resource = &PODS, .ns = "n", .name = "a", .body = BODY } },
    { "a relative path", { .verb = KUBE_GET, .path = "version" } },
};

Test(request, that_makes_no_sense_is_refused_here)
{
    for (size_t i = 0; i < COUNT(BAD); i++) {
        struct kube_http h;
        struct error e = ERROR_INIT;
        cr_expect_eq(kube_http_of(&BAD[i].r, &h, &e), -1, "case %s", BAD[i].name);
        cr_expect(e.kind == ERROR_INVALID && e.text[0] != '\0', "case %s: %s", BAD[i].name, e.text);
    }
}

Test(request, a_delete_says_what_it_is_about)
{
    struct kube_request r = { .verb = KUBE_DELETE, .resource = &PODS, .ns = "n", .name = "a", .delete_uid = "u-1", .has_grace = true,
                              .grace_s = 0, .propagation = KUBE_FOREGROUND };
    struct kube_http h;
    struct error e;

    cr_assert_eq(kube_http_of(&r, &h, &e), 0);
    cr_expect_str_eq(h.body, "{\"apiVersion\":\"v1\",\"kind\":\"DeleteOptions\",\"gracePeriodSeconds\":0,\"propagationPolicy\":\"Foreground\","
                             "\"preconditions\":{\"uid\":\"u-1\"}}", "%s", h.body);
    cr_expect_str_eq(h.what, "delete pods n/a");
    kube_http_release(&h);
}

static const struct { int code; const char *body; enum error_kind kind; const char *text; int64_t retry_ms; } ANSWERS[] = {
    { 404, "{\"kind\":\"Status\",\"reason\":\"NotFound\",\"message\":\"pods \\\"a\\\" not found\"}", ERROR_NOT_FOUND, "x: pods \"a\" not found", 0 },
    { 409, "{\"kind\":\"Status\",\"reason\":\"AlreadyExists\",\"message\":\"it is there\"}", ERROR_CONFLICT, "x: it is there", 0 },
    { 410, "{\"kind\":\"Status\",\"reason\":\"Expired\",\"message\":\"too old\"}", ERROR_GONE, "x: too old", 0 },
    { 504, "{\"kind\":\"Status\",\"reason\":\"Timeout\",\"message\":\"slow\"}", ERROR_TIMEOUT, "x: slow", 0 },
    { 500, "{\"kind\":\"Status\",\"reason\":\"ServerTimeout\",\"message\":\"etcd\",\"details\":{\"retryAfterSeconds\":2}}", ERROR_BUSY, "x: etcd", 2000 },
    { 500, "{\"kind\":\"Status\",\"message\":\"panic\"}", ERROR_IO, "x: panic", 0 },
    { 401, "{\"kind\":\"Status\",\"reason\":\"Unauthorized\",\"message\":\"Unauthorized\"}", ERROR_DENIED,
      "x: the API server does not know who we are: the token or certificate is wrong or has expired", 0 },
    { 403, "Forbidden by a proxy", ERROR_DENIED, "x: HTTP status 403: Forbidden by a proxy", 0 },
    { 502, "<html>bad gateway</html>", ERROR_IO, "x: the API server failed", 0 },
    { 429, "", ERROR_BUSY, "x: too many requests", 0 },
    { 404, "{\"kind\":\"Statu", ERROR_NOT_FOUND, "x: not found", 0 },
    { 503, "{\"kind\":\"Status\",\"message\":7,\"details\":{\"retryAfterSeconds\":1e99}}", ERROR_BUSY, "x: service unavailable", 0 },
};

Test(request, answers_become_errors)
{
    for (size_t i = 0; i < COUNT(ANSWERS); i++) {
        struct kube_status status;
        struct error e = ERROR_INIT;
        kube_status_error(ANSWERS[i].code, ANSWERS[i].body, strlen(ANSWERS[i].body), "x", &status, &e);
        cr_expect_eq(e.kind, ANSWERS[i].kind, "answer %zu: %s", i, error_kind_name(e.kind));
        cr_expect_str_eq(e.text, ANSWERS[i].text, "answer %zu: %s", i, e.text);
        cr_expect_eq(status.retry_after_ms, ANSWERS[i].retry_ms, "answer %zu", i);
    }
}
