#include "job/schema.h"

#include <math.h>
#include <pthread.h>
#include <regex.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/text.h"

/* ---- the embedded CRDs ------------------------------------------------------------------------------------------------ */

__asm__(".section .rodata\n"
        ".global ringmaster_crd_trainingjob\n"
        ".hidden ringmaster_crd_trainingjob\n"
        ".global ringmaster_crd_trainingjob_end\n"
        ".hidden ringmaster_crd_trainingjob_end\n"
        "ringmaster_crd_trainingjob:\n"
        ".incbin \"crd/trainingjob.yaml\"\n"
        "ringmaster_crd_trainingjob_end:\n"
        ".byte 0\n"
        ".previous\n");
extern const char ringmaster_crd_trainingjob[], ringmaster_crd_trainingjob_end[];

/* ObjectMeta as a person writes it or the API server returns it. The API server has this type built in, so that a CRD says
 * of metadata no more than that it is an object. */
static const char METADATA[] =
    "{\"type\":\"object\",\"properties\":{"
    "\"name\":{\"type\":\"string\"},\"generateName\":{\"type\":\"string\"},"
    "\"namespace\":{\"type\":\"string\",\"maxLength\":63,\"pattern\":\"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$\"},"
    "\"labels\":{\"type\":\"object\",\"additionalProperties\":{\"type\":\"string\",\"maxLength\":63,"
    "\"pattern\":\"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$\"}},"
    "\"annotations\":{\"type\":\"object\",\"additionalProperties\":{\"type\":\"string\"}},"
    "\"finalizers\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}},"
    "\"ownerReferences\":{\"type\":\"array\",\"items\":{\"type\":\"object\"}},"
    "\"managedFields\":{\"type\":\"array\",\"items\":{\"type\":\"object\"}},"
    "\"uid\":{\"type\":\"string\",\"maxLength\":63},\"resourceVersion\":{\"type\":\"string\"},\"selfLink\":{\"type\":\"string\"},"
    "\"generation\":{\"type\":\"integer\",\"minimum\":0},\"deletionGracePeriodSeconds\":{\"type\":\"integer\",\"minimum\":0},"
    "\"creationTimestamp\":{\"type\":\"string\",\"format\":\"date-time\"},"
    "\"deletionTimestamp\":{\"type\":\"string\",\"format\":\"date-time\"}}}";

static struct yaml_doc *trainingjob_doc;
static cJSON *metadata_schema;

/* What is embedded was checked when it was built; failing here means a broken build. */
static void load_schemas(void)
{
    struct error e = ERROR_INIT;

    if (yaml_parse("crd/trainingjob.yaml", ringmaster_crd_trainingjob,
                   (size_t)(ringmaster_crd_trainingjob_end - ringmaster_crd_trainingjob), &trainingjob_doc, &e) < 0 ||
        json_parse(METADATA, sizeof METADATA - 1, &metadata_schema, &e) < 0)
        abort();
}

const cJSON *schema_of_kind(const char *kind)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)pthread_once(&once, load_schemas);
    const cJSON *crd = yaml_tree(trainingjob_doc, 0);
    if (strcmp(kind, json_text(crd, "spec.names.kind", "")) != 0)
        return NULL;
    const cJSON *version = cJSON_GetArrayItem(json_at(crd, "spec.versions"), 0);
    return json_at(version, "schema.openAPIV3Schema");
}

/* ---- where we are ----------------------------------------------------------------------------------------------------- */

struct path { const struct path *parent; const char *key; int index; /* of an item when key is NULL */ };

static void path_add(const struct path *path, struct buf *out)
{
    if (path == NULL)
        return;
    path_add(path->parent, out);
    if (path->key == NULL)
        buf_addf(out, "[%d]", path->index);
    else
        buf_addf(out, "%s%.200s", out->len > 0 ? "." : "", path->key);
}

struct checker { const cJSON *root; const struct yaml_doc *doc; struct problems *problems; };

static void complain(struct checker *c, const struct path *path, const cJSON *value, const char *fmt, ...) FORMAT(4, 5);
static void complain(struct checker *c, const struct path *path, const cJSON *value, const char *fmt, ...)
{
    auto_buf struct buf where = BUF_INIT(32 * 1024);
    char text[320];
    va_list args;

    path_add(path, &where);
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    problems_add(c->problems, c->doc, value, buf_text(&where), "%s", text);
}

/* ---- words ------------------------------------------------------------------------------------------------------------ */

static const cJSON *rule(const cJSON *schema, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(schema, name);
}

/* Objects and schemas mostly name their members in the same order: the search goes on where the last one ended. */
static const cJSON *property_of(const cJSON *properties, const char *key, const cJSON **next)
{
    const cJSON *first = properties != NULL ? properties->child : NULL, *begin = *next != NULL ? *next : first;

    for (const cJSON *p = begin; p != NULL; p = p->next) {
        if (strcmp(p->string, key) == 0) {
            *next = p->next;
            return p;
        }
    }
    for (const cJSON *p = first; p != begin; p = p->next) {
        if (strcmp(p->string, key) == 0) {
            *next = p->next;
            return p;
        }
    }
    return NULL;
}

static const char *type_of(const cJSON *schema)
{
    const cJSON *type = rule(schema, "type");

    return cJSON_IsString(type) ? type->valuestring : "";
}

static bool is_set(const cJSON *schema, const char *name)
{
    return cJSON_IsTrue(rule(schema, name));
}

static void add_range(const cJSON *schema, struct buf *out)
{
    const cJSON *least = rule(schema, "minimum"), *most = rule(schema, "maximum");

    if (least != NULL && most != NULL)
        buf_addf(out, " from %.15g to %.15g", least->valuedouble, most->valuedouble);
    else if (least != NULL)
        buf_addf(out, " of at least %.15g", least->valuedouble);
    else if (most != NULL)
        buf_addf(out, " of at most %.15g", most->valuedouble);
}

static void add_lengths(const cJSON *schema, const char *least_name, const char *most_name, const char *unit, struct buf *out)
{
    int64_t least = json_int(schema, least_name, 0), most = json_int(schema, most_name, -1);

    if (least > 0 && most >= 0)
        buf_addf(out, " of %lld to %lld %s", (long long)least, (long long)most, unit);
    else if (most >= 0)
        buf_addf(out, " of at most %lld %s", (long long)most, unit);
    else if (least > 0)
        buf_addf(out, " of at least %lld %s", (long long)least, unit);
}

static void add_enum(const cJSON *choices, struct buf *out)
{
    const cJSON *choice;

    buf_add(out, cJSON_GetArraySize(choices) > 1 ? "one of " : "");
    cJSON_ArrayForEach(choice, choices) {
        const char *text = cJSON_IsString(choice) ? choice->valuestring : "";
        buf_add(out, choice == choices->child ? "" : choice->next == NULL ? " or " : ", ");
        buf_add(out, text[0] != '\0' ? text : "\"\"");
    }
}

static void describe_expected(const cJSON *schema, struct buf *out)
{
    const char *type = type_of(schema), *format = json_text(schema, "format", ""), *pattern = json_text(schema, "pattern", NULL);

    if (rule(schema, "enum") != NULL) {
        add_enum(rule(schema, "enum"), out);
    } else if (is_set(schema, "x-kubernetes-int-or-string")) {
        buf_add(out, pattern != NULL ? "a quantity such as 4, \"500m\" or 64Mi" : "an integer or text");
    } else if (strcmp(type, "integer") == 0) {
        buf_add(out, "an integer");
        add_range(schema, out);
    } else if (strcmp(type, "number") == 0) {
        buf_add(out, "a number");
        add_range(schema, out);
    } else if (strcmp(type, "boolean") == 0) {
        buf_add(out, "true or false");
    } else if (strcmp(type, "array") == 0) {
        buf_add(out, "a list");
        add_lengths(schema, "minItems", "maxItems", "items", out);
    } else if (strcmp(type, "object") == 0) {
        buf_add(out, "a mapping");
        add_lengths(schema, "minProperties", "maxProperties", "keys", out);
    } else if (strcmp(format, "date-time") == 0) {
        buf_add(out, "a time such as 2026-02-03T04:05:06Z");
    } else {
        buf_add(out, "text");
        add_lengths(schema, "minLength", "maxLength", "characters", out);
        if (pattern != NULL)
            buf_addf(out, " that matches %.120s", pattern);
    }
}

static void describe_found(const cJSON *value, struct buf *out)
{
    if (cJSON_IsString(value))
        buf_addf(out, strlen(value->valuestring) > 60 ? "\"%.60s...\"" : "\"%s\"", value->valuestring);
    else if (cJSON_IsNumber(value))
        buf_addf(out, "%.15g", value->valuedouble);
    else if (cJSON_IsBool(value))
        buf_add(out, cJSON_IsTrue(value) ? "true" : "false");
    else
        buf_add(out, cJSON_IsArray(value) ? "a list" : cJSON_IsObject(value) ? "a mapping" : "nothing");
}

/* What a person most likely has to do, or "". */
static const char *hint(const cJSON *schema, const cJSON *value)
{
    int64_t number;
    const char *type = type_of(schema);

    if (strcmp(type, "string") == 0 && (cJSON_IsNumber(value) || cJSON_IsBool(value)) && rule(schema, "enum") == NULL)
        return "; put it in quotes";
    if (is_set(schema, "x-kubernetes-int-or-string") && cJSON_IsNumber(value))
        return "; put it in quotes";
    if (!cJSON_IsString(value))
        return "";
    if (strcmp(type, "array") == 0)
        return "; write each item behind a dash, or all in [ ]";
    if (strcmp(type, "integer") == 0 && text_int(value->valuestring, &number))
        return "; remove the quotes";
    if (strcmp(type, "boolean") == 0 && (strcmp(value->valuestring, "true") == 0 || strcmp(value->valuestring, "false") == 0))
        return "; remove the quotes";
    return "";
}

static void complain_value(struct checker *c, const struct path *path, const cJSON *schema, const cJSON *value)
{
    auto_buf struct buf found = BUF_INIT(512), expected = BUF_INIT(4096);
    const cJSON *choices = rule(schema, "enum"), *choice;
    const char *near = NULL;

    describe_found(value, &found);
    describe_expected(schema, &expected);
    if (choices != NULL && cJSON_IsString(value)) {
        auto_free const char **names = xcalloc((size_t)cJSON_GetArraySize(choices) + 1, sizeof names[0]);
        size_t n = 0;
        cJSON_ArrayForEach(choice, choices) {
            if (cJSON_IsString(choice))
                names[n++] = choice->valuestring;
        }
        near = text_nearest(value->valuestring, names);
    }
    if (near != NULL)
        complain(c, path, value, "found %s, expected %s; did you mean \"%s\"?", buf_text(&found), buf_text(&expected), near);
    else
        complain(c, path, value, "found %s, expected %s%s", buf_text(&found), buf_text(&expected), hint(schema, value));
}

/* ---- scalars ---------------------------------------------------------------------------------------------------------- */

enum { PATTERN_TEXT_MAX = 4096, PATTERNS_MAX = 1024 };

/* The schema's patterns, compiled when they are first met and kept, as the schema is: to compile one costs more than all the rest
 * of a check. A pattern is known by its place in the schema. */
static const regex_t *compiled(const char *pattern)
{
    static struct known { const char *pattern; bool is_good; regex_t regex; } known[PATTERNS_MAX];
    static size_t count;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    struct known *found = NULL;

    (void)pthread_mutex_lock(&lock);
    for (size_t i = 0; i < count && found == NULL; i++)
        found = known[i].pattern == pattern ? &known[i] : NULL;
    if (found == NULL && count < PATTERNS_MAX) {
        found = &known[count++];
        found->pattern = pattern;
        found->is_good = regcomp(&found->regex, pattern, REG_EXTENDED | REG_NOSUB) == 0;
    }
    (void)pthread_mutex_unlock(&lock);
    return found != NULL && found->is_good ? &found->regex : NULL;
}

static bool matches(const char *text, const char *pattern)
{
    const regex_t *regex = compiled(pattern);

    return regex != NULL && strlen(text) <= PATTERN_TEXT_MAX && regexec(regex, text, 0, NULL, 0) == 0;
}

static size_t character_count(const char *text)
{
    size_t n = 0;

    for (; *text != '\0'; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

static bool in_range(const cJSON *schema, double number)
{
    const cJSON *least = rule(schema, "minimum"), *most = rule(schema, "maximum");
    const char *format = json_text(schema, "format", "");

    if (strcmp(format, "int32") == 0 && (number < -2147483648.0 || number > 2147483647.0))
        return false;
    return (least == NULL || number >= least->valuedouble) && (most == NULL || number <= most->valuedouble) &&
           fabs(number) <= 9007199254740992.0;
}

static bool is_integer(const cJSON *value)
{
    return cJSON_IsNumber(value) && value->valuedouble == floor(value->valuedouble);
}

static bool text_fits(const cJSON *schema, const char *text)
{
    const char *pattern = json_text(schema, "pattern", NULL);
    int64_t most = json_int(schema, "maxLength", -1), least = json_int(schema, "minLength", 0), wall_ms;
    size_t len = character_count(text);

    if ((most >= 0 && len > (size_t)most) || len < (size_t)least || (pattern != NULL && !matches(text, pattern)))
        return false;
    return strcmp(json_text(schema, "format", ""), "date-time") != 0 || clock_parse(text, &wall_ms) == 0;
}

static bool is_choice(const cJSON *schema, const cJSON *value)
{
    const cJSON *choices = rule(schema, "enum"), *choice;

    if (choices == NULL)
        return true;
    cJSON_ArrayForEach(choice, choices) {
        if (cJSON_Compare(choice, value, true))
            return true;
    }
    return false;
}

static bool scalar_fits(const cJSON *schema, const cJSON *value)
{
    const char *type = type_of(schema);

    if (is_set(schema, "x-kubernetes-int-or-string"))
        return is_integer(value) ? fabs(value->valuedouble) <= 9007199254740992.0
                                 : cJSON_IsString(value) && text_fits(schema, value->valuestring);
    if (!is_choice(schema, value))
        return false;
    if (strcmp(type, "string") == 0)
        return cJSON_IsString(value) && text_fits(schema, value->valuestring);
    if (strcmp(type, "boolean") == 0)
        return cJSON_IsBool(value);
    if (strcmp(type, "integer") == 0)
        return is_integer(value) && in_range(schema, value->valuedouble);
    return strcmp(type, "number") != 0 || (cJSON_IsNumber(value) && in_range(schema, value->valuedouble));
}

/* ---- objects ---------------------------------------------------------------------------------------------------------- */

static void check(struct checker *c, const struct path *path, const cJSON *schema, const cJSON *value);

/* Looks for a property of this very name at most `depth` levels below; its dotted path goes to out. */
static bool find_below(const cJSON *schema, const char *key, int depth, struct buf *out)
{
    const cJSON *properties = rule(schema, "properties"), *property;

    if (cJSON_GetObjectItemCaseSensitive(properties, key) != NULL) {
        buf_addf(out, "%s%.100s", out->len > 0 ? "." : "", key);
        return true;
    }
    if (depth == 0)
        return false;
    cJSON_ArrayForEach(property, properties) {
        size_t len = out->len;
        buf_addf(out, "%s%.100s", len > 0 ? "." : "", property->string);
        if (strcmp(property->string, "status") != 0 && find_below(property, key, depth - 1, out))
            return true;
        out->len = len;
        out->text[len] = '\0';
    }
    return false;
}

static bool find_elsewhere(const cJSON *schema, const char *key, int max_depth, struct buf *out)
{
    for (int depth = 1; depth <= max_depth; depth++) { /* the nearest first */
        buf_clear(out);
        if (find_below(schema, key, depth, out))
            return true;
    }
    return false;
}

static void complain_unknown(struct checker *c, const struct path *path, const cJSON *schema, const cJSON *value)
{
    const cJSON *properties = rule(schema, "properties"), *property;
    auto_buf struct buf better = BUF_INIT(1024), known = BUF_INIT(16 * 1024);
    auto_free const char **names = xcalloc((size_t)cJSON_GetArraySize(properties) + 1, sizeof names[0]);
    size_t n = 0;

    cJSON_ArrayForEach(property, properties) {
        buf_addf(&known, "%s%s", n > 0 ? ", " : "", property->string);
        names[n++] = property->string;
    }
    const char *near = text_nearest(value->string, names);
    if (find_elsewhere(schema, value->string, 3, &better))
        complain(c, path, value, "unknown field; did you mean \"%s\" below it?", buf_text(&better));
    else if (near != NULL)
        complain(c, path, value, "unknown field; did you mean \"%s\"?", near);
    else if (find_elsewhere(c->root, value->string, 4, &better))
        complain(c, path, value, "unknown field here; it belongs to %s", buf_text(&better));
    else if (known.len > 0 && known.len < 200)
        complain(c, path, value, "unknown field; known here are %s", buf_text(&known));
    else
        complain(c, path, value, "unknown field; remove it");
}

/* A null where none may be counts as absent: the API server drops it. */
static bool is_absent(const cJSON *schema, const cJSON *value)
{
    return value == NULL || (cJSON_IsNull(value) && !is_set(schema, "nullable"));
}

static void check_required(struct checker *c, const struct path *path, const cJSON *schema, const cJSON *value)
{
    const cJSON *properties = rule(schema, "properties"), *name;

    cJSON_ArrayForEach(name, rule(schema, "required")) {
        const cJSON *property = cJSON_GetObjectItemCaseSensitive(properties, name->valuestring);
        const cJSON *found = cJSON_GetObjectItemCaseSensitive(value, name->valuestring);
        if (!is_absent(property, found) || rule(property, "default") != NULL)
            continue;
        struct path missing = { .parent = path, .key = name->valuestring };
        auto_buf struct buf expected = BUF_INIT(4096);
        describe_expected(property, &expected);
        complain(c, &missing, found != NULL ? found : value, "missing, expected %s", buf_text(&expected));
    }
}

static void check_object(struct checker *c, const struct path *path, const cJSON *schema, const cJSON *value)
{
    const cJSON *properties = rule(schema, "properties"), *others = rule(schema, "additionalProperties"), *child, *next = NULL;
    int64_t count = 0, most = json_int(schema, "maxProperties", -1);
    bool open = (properties == NULL && others == NULL) || is_set(schema, "x-kubernetes-preserve-unknown-fields") || cJSON_IsTrue(others);

    cJSON_ArrayForEach(child, value) {
        struct path at = { .parent = path, .key = child->string };
        const cJSON *property = property_of(properties, child->string, &next);
        if (property == NULL && cJSON_IsObject(others))
            property = others;
        count += property == NULL || !is_absent(property, child);
        if (property != NULL && !is_absent(property, child))
            check(c, &at, property, child);
        else if (property == NULL && !open)
            complain_unknown(c, &at, schema, child);
    }
    if ((most >= 0 && count > most) || count < json_int(schema, "minProperties", 0))
        complain_value(c, path, schema, value);
    check_required(c, path, schema, value);
}

/* ---- lists ------------------------------------------------------------------------------------------------------------ */

struct item_key { char *text; const cJSON *item; int index; };

static int compare_items(const void *a, const void *b)
{
    const struct item_key *x = a, *y = b;
    int order = strcmp(x->text, y->text);

    return order != 0 ? order : x->index - y->index;
}

/* What must not appear twice: the whole item of a set, the keys of an item of a map with the keys' defaults. */
static char *item_key_text(const cJSON *schema, const cJSON *item)
{
    const cJSON *keys = rule(schema, "x-kubernetes-list-map-keys"), *key, *properties = rule(rule(schema, "items"), "properties");

    if (keys == NULL)
        return json_print(item, false);
    auto_buf struct buf out = BUF_INIT(4 * YAML_MAX_BYTES);
    cJSON_ArrayForEach(key, keys) {
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(item, key->valuestring);
        if (value == NULL)
            value = rule(cJSON_GetObjectItemCaseSensitive(properties, key->valuestring), "default");
        auto_free char *text = value != NULL ? json_print(value, false) : xstrdup("nothing");
        buf_addf(&out, "%s%s %s", out.len > 0 ? ", " : "", key->valuestring, text);
    }
    return buf_take(&out);
}

static void check_unique(struct checker *c, const struct path *path, const cJSON *schema, const cJSON *value)
{
    const char *type = json_text(schema, "x-kubernetes-list-type", "");
    size_t count = (size_t)cJSON_GetArraySize(value), n = 0;
    const cJSON *item;

    if (count < 2 || (strcmp(type, "set") != 0 && strcmp(type, "map") != 0))
        return;
    auto_free struct item_key *keys = xcalloc(count, sizeof keys[0]);
    cJSON_ArrayForEach(item, value) {
        keys[n] = (struct item_key){ .text = item_key_text(schema, item), .item = item, .index = (int)n };
        n++;
    }
    qsort(keys, n, sizeof keys[0], compare_items);
    for (size_t i = 1; i < n; i++) {
        if (strcmp(keys[i - 1].text, keys[i].text) != 0)
            continue;
        struct path at = { .parent = path, .key = NULL, .index = keys[i].index };
        complain(c, &at, keys[i].item, "%.120s stands here a second time; the first is [%d]", keys[i].text, keys[i - 1].index);
    }
    for (size_t i = 0; i < n; i++)
        free(keys[i].text);
}

static void check_array(struct checker *c, const struct path *path, const cJSON *schema, const cJSON *value)
{
    const cJSON *items = rule(schema, "items"), *item;
    int64_t count = cJSON_GetArraySize(value), most = json_int(schema, "maxItems", -1);
    int index = 0;

    if ((most >= 0 && count > most) || count < json_int(schema, "minItems", 0)) {
        auto_buf struct buf expected = BUF_INIT(4096);
        describe_expected(schema, &expected);
        complain(c, path, value, "found %lld items, expected %s", (long long)count, buf_text(&expected));
    }
    cJSON_ArrayForEach(item, value) {
        struct path at = { .parent = path, .key = NULL, .index = index++ };
        check(c, &at, items, item);
    }
    check_unique(c, path, schema, value);
}

static void check(struct checker *c, const struct path *path, const cJSON *schema, const cJSON *value)
{
    const char *type = type_of(schema);

    if (c->problems->more || (cJSON_IsNull(value) && is_set(schema, "nullable")))
        return;
    if (strcmp(type, "object") == 0 && cJSON_IsObject(value))
        check_object(c, path, schema, value);
    else if (strcmp(type, "array") == 0 && cJSON_IsArray(value))
        check_array(c, path, schema, value);
    else if (strcmp(type, "object") == 0 || strcmp(type, "array") == 0 || !scalar_fits(schema, value))
        complain_value(c, path, schema, value);
}

void schema_check(const cJSON *schema, const cJSON *manifest, const struct yaml_doc *doc, struct problems *problems)
{
    struct checker c = { .root = schema, .doc = doc, .problems = problems };
    const cJSON *metadata = cJSON_GetObjectItemCaseSensitive(manifest, "metadata");

    check(&c, NULL, schema, manifest);
    if (cJSON_IsObject(metadata) && rule(rule(schema, "properties"), "metadata") != NULL) {
        struct path at = { .parent = NULL, .key = "metadata" };
        (void)schema_of_kind(""); /* loads */
        c.root = metadata_schema;
        check(&c, &at, metadata_schema, metadata);
    }
}

/* ---- defaults --------------------------------------------------------------------------------------------------------- */

static void default_properties(const cJSON *schema, cJSON *value)
{
    const cJSON *property;

    cJSON_ArrayForEach(property, rule(schema, "properties")) {
        cJSON *child = cJSON_GetObjectItemCaseSensitive(value, property->string);
        if (!is_absent(property, child))
            continue;
        const cJSON *fallback = rule(property, "default");
        if (child != NULL)
            cJSON_DeleteItemFromObjectCaseSensitive(value, property->string);
        if (fallback != NULL)
            json_put(value, property->string, cJSON_Duplicate(fallback, true));
    }
}

/* A map's keys without a value. */
static void drop_absent(const cJSON *schema, cJSON *map)
{
    for (cJSON *child = map->child, *next; child != NULL; child = next) {
        next = child->next;
        if (is_absent(schema, child))
            cJSON_Delete(cJSON_DetachItemViaPointer(map, child));
    }
}

void schema_default(const cJSON *schema, cJSON *manifest)
{
    const cJSON *properties = rule(schema, "properties"), *others = rule(schema, "additionalProperties"), *items = rule(schema, "items"), *next = NULL;
    cJSON *child;

    if (cJSON_IsObject(manifest) && strcmp(type_of(schema), "object") == 0) {
        default_properties(schema, manifest);
        if (cJSON_IsObject(others) && properties == NULL)
            drop_absent(others, manifest);
        cJSON_ArrayForEach(child, manifest) {
            const cJSON *property = property_of(properties, child->string, &next);
            if (property == NULL && cJSON_IsObject(others))
                property = others;
            if (property != NULL)
                schema_default(property, child);
        }
    } else if (cJSON_IsArray(manifest) && strcmp(type_of(schema), "array") == 0) {
        cJSON_ArrayForEach(child, manifest)
            schema_default(items, child);
    }
}

void schema_prune(const cJSON *schema, cJSON *manifest)
{
    const cJSON *properties = rule(schema, "properties"), *others = rule(schema, "additionalProperties"), *items = rule(schema, "items"), *hint = NULL;
    bool open = (properties == NULL && others == NULL) || is_set(schema, "x-kubernetes-preserve-unknown-fields") || cJSON_IsTrue(others);

    if (cJSON_IsObject(manifest) && strcmp(type_of(schema), "object") == 0) {
        for (cJSON *child = manifest->child, *next; child != NULL; child = next) {
            next = child->next;
            const cJSON *property = property_of(properties, child->string, &hint);
            if (property == NULL && cJSON_IsObject(others))
                property = others;
            if (property != NULL)
                schema_prune(property, child);
            else if (!open)
                cJSON_Delete(cJSON_DetachItemViaPointer(manifest, child));
        }
    } else if (cJSON_IsArray(manifest) && strcmp(type_of(schema), "array") == 0) {
        cJSON *child;
        cJSON_ArrayForEach(child, manifest)
            schema_prune(items, child);
    }
}
