#include "kube/request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct verb_def {
    const char *word, *method;
    const char *content_type; /* of a body; NULL = the verb has none */
    bool name;                /* needs a name, or must have none */
};

static const struct verb_def VERBS[] = {
    [KUBE_GET] = { "get", "GET", NULL, true },
    [KUBE_LIST] = { "list", "GET", NULL, false },
    [KUBE_WATCH] = { "watch", "GET", NULL, false },
    [KUBE_CREATE] = { "create", "POST", "application/json", false },
    [KUBE_UPDATE] = { "update", "PUT", "application/json", true },
    [KUBE_APPLY] = { "apply", "PATCH", "application/apply-patch+yaml", true },
    [KUBE_JSON_PATCH] = { "patch", "PATCH", "application/json-patch+json", true },
    [KUBE_MERGE_PATCH] = { "patch", "PATCH", "application/merge-patch+json", true },
    [KUBE_DELETE] = { "delete", "DELETE", NULL, true },
    [KUBE_DELETE_COLLECTION] = { "delete all", "DELETE", NULL, false },
};

/* ---- path and query ---------------------------------------------------------------------------------------------------- */

static void add_encoded(struct buf *b, const char *text)
{
    for (const char *c = text; *c != '\0'; c++) {
        if ((*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9') || strchr("-._~", *c) != NULL)
            buf_add_bytes(b, c, 1);
        else
            buf_addf(b, "%%%02X", (unsigned char)*c);
    }
}

/* A part of a path that nobody can use to reach another path. */
static bool is_segment(const char *text)
{
    return text[0] != '\0' && strcmp(text, ".") != 0 && strcmp(text, "..") != 0 && strchr(text, '/') == NULL && strlen(text) < KUBE_NAME_MAX;
}

static int check(const struct kube_request *r, struct error *e)
{
    const struct verb_def *verb = &VERBS[r->verb];

    if ((r->resource == NULL) == (r->path == NULL))
        return error_set(e, ERROR_INVALID, "a request needs a resource or a path");
    if (r->path != NULL)
        return r->verb == KUBE_GET && r->path[0] == '/' ? 0 : error_set(e, ERROR_INVALID, "path %.100s: only absolute ones can be read", r->path);
    if (r->resource->cluster_scoped && r->ns != NULL)
        return error_set(e, ERROR_INVALID, "%s %s: the resource is in no namespace", verb->word, r->resource->plural);
    if (!r->resource->cluster_scoped && r->ns == NULL && r->verb != KUBE_LIST && r->verb != KUBE_WATCH)
        return error_set(e, ERROR_INVALID, "%s %s: in which namespace?", verb->word, r->resource->plural);
    if ((r->ns != NULL && !is_segment(r->ns)) || (r->subresource != NULL && !is_segment(r->subresource)))
        return error_set(e, ERROR_INVALID, "%s %s: \"%.80s\" is no namespace", verb->word, r->resource->plural, r->ns != NULL ? r->ns : "");
    if (verb->name && (r->name == NULL || !is_segment(r->name)))
        return error_set(e, ERROR_INVALID, "%s %s: \"%.80s\" is no name", verb->word, r->resource->plural, r->name != NULL ? r->name : "");
    if (!verb->name && r->name != NULL && !(r->verb == KUBE_CREATE && r->subresource != NULL))
        return error_set(e, ERROR_INVALID, "%s %s: takes no name", verb->word, r->resource->plural);
    if ((verb->content_type != NULL) != (r->body != NULL))
        return error_set(e, ERROR_INVALID, "%s %s: %s", verb->word, r->resource->plural, r->body != NULL ? "takes no body" : "needs a body");
    if (r->verb == KUBE_APPLY && r->field_manager == NULL)
        return error_set(e, ERROR_INVALID, "apply %s: needs a field manager", r->resource->plural);
    return 0;
}

static void add_path(const struct kube_request *r, struct buf *b)
{
    if (r->path != NULL) {
        buf_add(b, r->path);
        return;
    }
    buf_add(b, r->resource->group[0] != '\0' ? "/apis/" : "/api/");
    if (r->resource->group[0] != '\0')
        buf_addf(b, "%s/", r->resource->group);
    buf_add(b, r->resource->version);
    if (r->ns != NULL) {
        buf_add(b, "/namespaces/");
        add_encoded(b, r->ns);
    }
    buf_addf(b, "/%s", r->resource->plural);
    const char *rest[] = { r->name, r->subresource };
    for (size_t i = 0; i < COUNT(rest); i++)
        if (rest[i] != NULL) {
            buf_add(b, "/");
            add_encoded(b, rest[i]);
        }
}

static void add_parameter(struct buf *b, const char *name, const char *value)
{
    if (value == NULL)
        return;
    buf_addf(b, "%c%s=", strchr(buf_text(b), '?') != NULL ? '&' : '?', name);
    add_encoded(b, value);
}

static void add_number(struct buf *b, const char *name, uint32_t value)
{
    char text[16];

    snprintf(text, sizeof text, "%u", value);
    if (value > 0)
        add_parameter(b, name, text);
}

static void add_query(const struct kube_request *r, struct buf *b)
{
    bool writes = VERBS[r->verb].content_type != NULL;

    if (r->verb == KUBE_WATCH)
        add_parameter(b, "watch", "true");
    add_parameter(b, "labelSelector", r->label_selector);
    add_parameter(b, "fieldSelector", r->field_selector);
    add_parameter(b, "resourceVersion", r->resource_version);
    add_parameter(b, "resourceVersionMatch", r->resource_version_match);
    add_parameter(b, "continue", r->continue_token);
    add_number(b, "limit", r->limit);
    add_number(b, "timeoutSeconds", r->server_timeout_s);
    add_parameter(b, "allowWatchBookmarks", r->bookmarks ? "true" : NULL);
    add_parameter(b, "sendInitialEvents", r->initial_events ? "true" : NULL);
    add_parameter(b, "fieldManager", writes ? r->field_manager : NULL);
    add_parameter(b, "force", r->verb == KUBE_APPLY && r->force ? "true" : NULL);
    add_parameter(b, "dryRun", writes && r->dry_run ? "All" : NULL);
    add_parameter(b, "fieldValidation", writes && r->strict ? "Strict" : NULL);
    if (r->query != NULL)
        buf_addf(b, "%c%s", strchr(buf_text(b), '?') != NULL ? '&' : '?', r->query);
}

/* ---- bodies ------------------------------------------------------------------------------------------------------------ */

static cJSON *delete_options(const struct kube_request *r)
{
    static const char *const POLICIES[] = { NULL, "Background", "Foreground", "Orphan" };
    cJSON *options = json_object();

    json_put_text(options, "apiVersion", "v1");
    json_put_text(options, "kind", "DeleteOptions");
    if (r->has_grace)
        json_put_int(options, "gracePeriodSeconds", r->grace_s);
    json_put_text(options, "propagationPolicy", POLICIES[r->propagation]);
    if (r->dry_run) {
        cJSON *all = json_array();
        json_append(all, cJSON_CreateString("All"));
        json_put(options, "dryRun", all);
    }
    if (r->delete_uid != NULL || r->delete_version != NULL) {
        cJSON *preconditions = json_object();
        json_put_text(preconditions, "uid", r->delete_uid);
        json_put_text(preconditions, "resourceVersion", r->delete_version);
        json_put(options, "preconditions", preconditions);
    }
    return options;
}

static const char *accept_of(const struct kube_request *r)
{
    if (r->raw)
        return "*/*";
    if (r->want != KUBE_WANT_METADATA)
        return "application/json";
    return r->verb == KUBE_LIST ? "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
                                : "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
}

static void describe(const struct kube_request *r, char ret[KUBE_WHAT_MAX])
{
    if (r->path != NULL) {
        snprintf(ret, KUBE_WHAT_MAX, "get %s", r->path);
        return;
    }
    const char *name = r->name != NULL ? r->name : r->body != NULL ? kube_name(r->body) : "";
    const char *ns = r->ns != NULL ? r->ns : "";
    snprintf(ret, KUBE_WHAT_MAX, "%s %s%s%s%s%s%s%s", VERBS[r->verb].word, r->resource->plural, r->subresource != NULL ? "/" : "",
             r->subresource != NULL ? r->subresource : "", ns[0] != '\0' || name[0] != '\0' ? " " : "", ns,
             ns[0] != '\0' && name[0] != '\0' ? "/" : "", name);
}

int kube_http_of(const struct kube_request *r, struct kube_http *ret, struct error *e)
{
    if (check(r, e) < 0)
        return -1;
    auto_buf struct buf target = BUF_INIT(KUBE_URL_MAX);
    add_path(r, &target);
    add_query(r, &target);
    struct kube_http h = { .method = VERBS[r->verb].method, .accept = accept_of(r), .content_type = VERBS[r->verb].content_type };
    describe(r, h.what);
    if (!buf_ok(&target))
        return error_set(e, ERROR_LIMIT, "%s: a selector or token is too long", h.what);
    if (r->verb == KUBE_DELETE || r->verb == KUBE_DELETE_COLLECTION) {
        auto_json cJSON *options = delete_options(r);
        h.content_type = "application/json";
        h.body = json_print(options, false);
    } else if (r->body != NULL) {
        h.body = json_print(r->body, false);
    }
    if (h.body != NULL && strlen(h.body) > KUBE_BODY_MAX) {
        kube_http_release(&h);
        return error_set(e, ERROR_LIMIT, "%s: the object has more than %u bytes, the API server takes no more", h.what, KUBE_BODY_MAX);
    }
    h.target = buf_take(&target);
    *ret = h;
    return 0;
}

void kube_http_release(struct kube_http *h)
{
    free(h->target);
    free(h->body);
    h->target = h->body = NULL;
}

/* ---- answers ----------------------------------------------------------------------------------------------------------- */

static const struct { int code; enum error_kind kind; const char *words; } CODES[] = {
    { 400, ERROR_INVALID, "bad request" },
    { 401, ERROR_DENIED, "the API server does not know who we are: the token or certificate is wrong or has expired" },
    { 403, ERROR_DENIED, "forbidden" },
    { 404, ERROR_NOT_FOUND, "not found" },
    { 405, ERROR_INVALID, "method not allowed" },
    { 406, ERROR_INVALID, "not acceptable" },
    { 409, ERROR_CONFLICT, "conflict" },
    { 410, ERROR_GONE, "gone" },
    { 413, ERROR_INVALID, "the request is too large" },
    { 415, ERROR_INVALID, "unsupported media type" },
    { 422, ERROR_INVALID, "invalid" },
    { 429, ERROR_BUSY, "too many requests" },
    { 503, ERROR_BUSY, "service unavailable" },
    { 504, ERROR_TIMEOUT, "the API server gave up after its own time limit" },
};

/* Reasons say more than codes: they hold where a code is missing or stands for two things. */
static const struct { const char *reason; enum error_kind kind; } REASONS[] = {
    { "AlreadyExists", ERROR_CONFLICT }, { "Conflict", ERROR_CONFLICT }, { "NotFound", ERROR_NOT_FOUND }, { "Gone", ERROR_GONE },
    { "Expired", ERROR_GONE }, { "Forbidden", ERROR_DENIED }, { "Unauthorized", ERROR_DENIED }, { "Invalid", ERROR_INVALID },
    { "BadRequest", ERROR_INVALID }, { "TooManyRequests", ERROR_BUSY }, { "ServiceUnavailable", ERROR_BUSY },
    { "Timeout", ERROR_TIMEOUT }, { "ServerTimeout", ERROR_BUSY },
};

static void from_status(int code, const cJSON *status, const char *what, struct kube_status *ret, struct error *e)
{
    const char *reason = json_text(status, "reason", ""), *words = "the API server failed";
    enum error_kind kind = ERROR_IO;
    int64_t seconds = json_int(status, "details.retryAfterSeconds", 0);

    for (size_t i = 0; i < COUNT(CODES); i++)
        if (CODES[i].code == code) {
            kind = CODES[i].kind;
            words = CODES[i].words;
        }
    for (size_t i = 0; i < COUNT(REASONS); i++)
        if (strcmp(REASONS[i].reason, reason) == 0)
            kind = REASONS[i].kind;
    *ret = (struct kube_status){ .retry_after_ms = seconds > 0 && seconds < 86400 ? seconds * 1000 : 0 };
    snprintf(ret->reason, sizeof ret->reason, "%s", reason);
    const char *message = json_text(status, "message", "");
    (void)error_set(e, kind, "%s: %s", what, message[0] != '\0' && code != 401 ? message : words);
}

void kube_status_error(int http_status, const char *body, size_t len, const char *what, struct kube_status *ret, struct error *e)
{
    auto_json cJSON *status = NULL;
    struct error unread;

    if (json_parse(body, len, &status, &unread) < 0 || strcmp(json_text(status, "kind", ""), "Status") != 0) {
        from_status(http_status, NULL, what, ret, e);
        size_t line = strcspn(body, "\r\n"); /* a proxy's or a webhook's own words */
        if (line > 0 && line < 120 && body[0] != '<' && body[0] != '{' && http_status != 401)
            (void)error_set(e, e->kind, "%s: HTTP status %d: %.*s", what, http_status, (int)line, body);
        return;
    }
    from_status(http_status, status, what, ret, e);
}

void kube_status_object_error(const cJSON *status, int *ret_code, struct kube_status *ret, struct error *e)
{
    int64_t code = json_int(status, "code", 0);

    *ret_code = code >= 100 && code < 600 ? (int)code : 500;
    from_status(*ret_code, status, "watch", ret, e);
}
