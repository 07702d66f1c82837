#include "base/opt.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/text.h"

/* Where a value came from, for messages: "--port" or "environment variable RINGMASTER_PORT". */
struct source { const char *before, *name; };

static void *field(const struct opt_def *def, void *options)
{
    return (char *)options + def->at;
}

static void list_clear(struct opt_list *list)
{
    free(list->items);
    *list = (struct opt_list){ .items = NULL, .count = 0 };
}

static bool bounded(const struct opt_def *def)
{
    return def->min != 0 || def->max != 0;
}

static const char *duration_text(int64_t ms, char ret[32])
{
    static const struct { const char *unit; int64_t ms; } units[] = {
        { "h", 3600000 }, { "m", 60000 }, { "s", 1000 }, { "ms", 1 },
    };

    for (size_t i = 0; i < COUNT(units); i++) {
        if (ms % units[i].ms == 0 && (ms != 0 || units[i].ms == 1000)) {
            (void)snprintf(ret, 32, "%lld%s", (long long)(ms / units[i].ms), units[i].unit);
            break;
        }
    }
    return ret;
}

static const char *size_text(int64_t bytes, char ret[32])
{
    static const struct { const char *unit; int shift; } units[] = { { "Gi", 30 }, { "Mi", 20 }, { "Ki", 10 } };

    (void)snprintf(ret, 32, "%lld", (long long)bytes);
    for (size_t i = 0; i < COUNT(units); i++) {
        if (bytes > 0 && bytes % (1LL << units[i].shift) == 0) {
            (void)snprintf(ret, 32, "%lld%s", (long long)(bytes >> units[i].shift), units[i].unit);
            break;
        }
    }
    return ret;
}

/* What would have been right, for the message about a value that was not. */
static void describe_allowed(const struct opt_def *def, struct buf *out)
{
    char least[32], most[32];

    switch (def->type) {
    case OPT_BOOL:
        buf_add(out, "true or false");
        break;
    case OPT_INT:
        buf_add(out, "an integer");
        if (bounded(def))
            buf_addf(out, " from %lld to %lld", (long long)def->min, (long long)def->max);
        break;
    case OPT_DURATION:
        buf_add(out, "a duration such as 250ms, 5s or 2m");
        if (bounded(def))
            buf_addf(out, ", from %s to %s", duration_text(def->min, least), duration_text(def->max, most));
        break;
    case OPT_SIZE:
        buf_add(out, "a size such as 64Mi or 1G");
        if (bounded(def))
            buf_addf(out, ", from %s to %s", size_text(def->min, least), size_text(def->max, most));
        break;
    case OPT_ENUM:
        for (size_t i = 0; def->names[i] != NULL; i++)
            buf_addf(out, "%s%s", i == 0 ? "" : def->names[i + 1] == NULL ? " or " : ", ", def->names[i]);
        break;
    case OPT_TEXT:
    case OPT_LIST:
        buf_add(out, "a text");
        break;
    }
}

static int wrong_value(const struct opt_def *def, struct source from, const char *found, struct error *e)
{
    auto_buf struct buf allowed = BUF_INIT(1024);
    const char *near = def->type == OPT_ENUM ? text_nearest(found, def->names) : NULL;

    describe_allowed(def, &allowed);
    return error_set(e, ERROR_INVALID, "%s%s: found \"%.60s\", expected %s%s%s%s", from.before, from.name, found,
                     buf_text(&allowed), near != NULL ? "; did you mean \"" : "", near != NULL ? near : "",
                     near != NULL ? "\"?" : "");
}

static bool parse_bool(const char *text, bool *ret)
{
    static const char *const yes[] = { "true", "yes", "on", "1" }, *const no[] = { "false", "no", "off", "0" };

    for (size_t i = 0; i < COUNT(yes); i++) {
        if (strcmp(text, yes[i]) == 0 || strcmp(text, no[i]) == 0) {
            *ret = strcmp(text, yes[i]) == 0;
            return true;
        }
    }
    return false;
}

static bool parse_number(const struct opt_def *def, const char *text, int64_t *ret)
{
    int64_t number;
    bool ok = def->type == OPT_INT        ? text_int(text, &number)
              : def->type == OPT_DURATION ? text_duration(text, &number)
                                          : text_quantity(text, &number);

    if (!ok || (bounded(def) && (number < def->min || number > def->max)))
        return false;
    *ret = number;
    return true;
}

/* Reads one value into its field; what came before it in a list stays. */
static int set_value(const struct opt_def *def, struct source from, const char *text, void *options, struct error *e)
{
    void *at = field(def, options);
    int64_t number;
    bool truth;

    switch (def->type) {
    case OPT_BOOL:
        if (!parse_bool(text, &truth))
            return wrong_value(def, from, text, e);
        *(bool *)at = truth;
        return 0;
    case OPT_INT:
    case OPT_DURATION:
    case OPT_SIZE:
        if (!parse_number(def, text, &number))
            return wrong_value(def, from, text, e);
        *(int64_t *)at = number;
        return 0;
    case OPT_ENUM:
        for (int i = 0; def->names[i] != NULL; i++) {
            if (strcmp(text, def->names[i]) == 0) {
                *(int *)at = i;
                return 0;
            }
        }
        return wrong_value(def, from, text, e);
    case OPT_TEXT:
        *(const char **)at = text;
        return 0;
    case OPT_LIST: {
        struct opt_list *list = at;
        list->items = xrealloc(list->items, list->count + 1, sizeof list->items[0]);
        list->items[list->count++] = text;
        return 0;
    }
    }
    return error_set(e, ERROR_BUG, "%s%s: unknown type of option", from.before, from.name);
}

static void set_zero(const struct opt_def *def, void *options)
{
    static const size_t sizes[] = {
        [OPT_BOOL] = sizeof(bool),           [OPT_INT] = sizeof(int64_t),  [OPT_TEXT] = sizeof(const char *),
        [OPT_ENUM] = sizeof(int),            [OPT_DURATION] = sizeof(int64_t), [OPT_SIZE] = sizeof(int64_t),
        [OPT_LIST] = sizeof(struct opt_list),
    };

    memset(field(def, options), 0, sizes[def->type]);
}

static const struct opt_def *find_flag(const struct opt_def *defs, size_t count, const char *name, size_t len)
{
    for (size_t i = 0; i < count; i++)
        if (strlen(defs[i].flag) == len && memcmp(defs[i].flag, name, len) == 0)
            return &defs[i];
    return NULL;
}

static const struct opt_def *find_letter(const struct opt_def *defs, size_t count, char letter)
{
    for (size_t i = 0; i < count; i++)
        if (defs[i].letter != 0 && defs[i].letter == letter)
            return &defs[i];
    return NULL;
}

static int unknown_flag(const struct opt_def *defs, size_t count, const char *word, size_t dashes, struct error *e)
{
    auto_free const char **names = xcalloc(count + 1, sizeof names[0]);
    auto_free char *name = xstrndup(word + dashes, strcspn(word + dashes, "="));
    size_t n = 0;

    for (size_t i = 0; i < count; i++)
        if (!defs[i].hidden)
            names[n++] = defs[i].flag;
    const char *near = text_nearest(name, names);
    if (near != NULL)
        return error_set(e, ERROR_INVALID, "unknown flag %.*s%.60s; did you mean --%s?", (int)dashes, word, name, near);
    return error_set(e, ERROR_INVALID, "unknown flag %.*s%.60s; --help lists the flags", (int)dashes, word, name);
}

/* One flag as it was written: its row, the name for messages, and the value that stood in the same word, or NULL. */
struct found_flag { const struct opt_def *def; char name[72]; const char *value; bool negated; };

static int split_flag(const struct opt_def *defs, size_t count, const char *word, struct found_flag *ret, struct error *e)
{
    size_t dashes = word[1] == '-' ? 2 : 1;
    const char *name = word + dashes;
    size_t len = strcspn(name, "=");
    struct found_flag f = { .def = find_flag(defs, count, name, len), .name = "", .value = NULL, .negated = false };

    if (name[len] == '=')
        f.value = name + len + 1;
    if (f.def == NULL && dashes == 2 && len > 3 && strncmp(name, "no-", 3) == 0) {
        f.def = find_flag(defs, count, name + 3, len - 3);
        f.negated = true;
        if (f.def != NULL && (f.def->type != OPT_BOOL || f.value != NULL))
            f.def = NULL;
    }
    if (dashes == 1 && (f.def == NULL || len == 1)) { /* -f VALUE, -fVALUE, -f=VALUE; -np is the flag "np" */
        f.def = find_letter(defs, count, word[1]);
        f.value = word[2] == '\0' ? NULL : word[2] == '=' ? word + 3 : word + 2;
        len = 1;
        if (f.def != NULL && f.def->type == OPT_BOOL && f.value != NULL && word[2] != '=')
            f.def = NULL; /* letters are not bundled */
    }
    if (f.def == NULL)
        return unknown_flag(defs, count, word, dashes, e);
    (void)snprintf(f.name, sizeof f.name, "%.*s", (int)(len + dashes), word);
    *ret = f;
    return 0;
}

/* Takes the flag at argv[*at] with its value and moves *at behind it. */
static int take_flag(const struct opt_def *defs, size_t count, int argc, char **argv, int *at, bool *seen, void *options,
                     struct error *e)
{
    struct found_flag f;

    if (split_flag(defs, count, argv[*at], &f, e) < 0)
        return -1;
    (*at)++;
    const char *value = f.value;
    if (f.def->type == OPT_BOOL && value == NULL) {
        value = f.negated ? "false" : "true";
    } else if (value == NULL) {
        if (*at >= argc)
            return error_set(e, ERROR_INVALID, "%s needs a value: %s %s", f.name, f.name,
                             f.def->value != NULL ? f.def->value : "VALUE");
        value = argv[(*at)++];
    }
    seen[f.def - defs] = true;
    return set_value(f.def, (struct source){ "", f.name }, value, options, e);
}

static bool is_help(const struct opt_def *defs, size_t count, const char *word)
{
    return (strcmp(word, "--help") == 0 && find_flag(defs, count, "help", 4) == NULL) ||
           (strcmp(word, "-h") == 0 && find_letter(defs, count, 'h') == NULL);
}

/* Walks argv. The words that are no flags end up at its end, in order; *ret_next is the first of them. */
static int parse_words(const struct opt_def *defs, size_t count, int argc, char **argv, bool stop_at_word, bool *seen,
                       void *options, int *ret_next, bool *ret_help, struct error *e)
{
    auto_free char **words = xcalloc((size_t)argc + 1, sizeof words[0]);
    auto_free char **flags = xcalloc((size_t)argc + 1, sizeof flags[0]);
    int word_count = 0, flag_count = 0, at = 1;

    while (at < argc) {
        char *word = argv[at];
        if (strcmp(word, "--") == 0) {
            flags[flag_count++] = argv[at++];
            break;
        }
        if (word[0] != '-' || word[1] == '\0') {
            if (stop_at_word)
                break;
            words[word_count++] = argv[at++];
            continue;
        }
        if (is_help(defs, count, word)) {
            *ret_help = true;
            return 0;
        }
        int first = at;
        if (take_flag(defs, count, argc, argv, &at, seen, options, e) < 0)
            return -1;
        for (; first < at; first++)
            flags[flag_count++] = argv[first];
    }
    memcpy(argv + 1, flags, (size_t)flag_count * sizeof argv[0]);
    memcpy(argv + 1 + flag_count, words, (size_t)word_count * sizeof argv[0]);
    *ret_next = argc > 0 ? 1 + flag_count : 0;
    return 0;
}

static int fill_unseen(const struct opt_def *def, void *options, struct error *e)
{
    const char *text = def->env != NULL ? getenv(def->env) : NULL;

    /* An empty variable says nothing, except where a text may be empty. */
    if (text != NULL && (text[0] != '\0' || def->type == OPT_TEXT))
        return set_value(def, (struct source){ "environment variable ", def->env }, text, options, e);
    if (def->def != NULL)
        return set_value(def, (struct source){ "default of --", def->flag }, def->def, options, e);
    return 0;
}

int opt_parse(const struct opt_def *defs, size_t count, int argc, char **argv, bool stop_at_word, void *options,
              int *ret_next, bool *ret_help, struct error *e)
{
    auto_free bool *seen = xcalloc(count, sizeof seen[0]);
    bool help = false;
    int next = argc;

    for (size_t i = 0; i < count; i++)
        set_zero(&defs[i], options);
    if (parse_words(defs, count, argc, argv, stop_at_word, seen, options, &next, &help, e) < 0) {
        opt_release(defs, count, options);
        return -1;
    }
    for (size_t i = 0; i < count && !help; i++) {
        if (!seen[i] && fill_unseen(&defs[i], options, e) < 0) {
            opt_release(defs, count, options);
            return -1;
        }
    }
    *ret_next = next;
    *ret_help = help;
    return 0;
}

enum { HELP_WIDTH = 100, HELP_LEFT_MAX = 34 };

static void row_left(const struct opt_def *def, struct buf *out)
{
    if (def->letter != 0)
        buf_addf(out, "  -%c, --%s", def->letter, def->flag);
    else
        buf_addf(out, "      --%s", def->flag);
    if (def->type != OPT_BOOL)
        buf_addf(out, " %s", def->value != NULL ? def->value : "VALUE");
}

static void row_right(const struct opt_def *def, struct buf *out)
{
    bool has_default = def->def != NULL && def->def[0] != '\0' && !(def->type == OPT_BOOL && strcmp(def->def, "false") == 0);

    buf_add(out, def->help != NULL ? def->help : "");
    if (def->type == OPT_ENUM) {
        buf_add(out, ": ");
        describe_allowed(def, out);
    }
    if (has_default && def->env != NULL)
        buf_addf(out, " (default %s, env %s)", def->def, def->env);
    else if (has_default)
        buf_addf(out, " (default %s)", def->def);
    else if (def->env != NULL)
        buf_addf(out, " (env %s)", def->env);
}

/* Breaks text at spaces into a column that begins at `left` and ends at HELP_WIDTH. */
static void print_wrapped(FILE *out, const char *text, size_t left)
{
    size_t column = left;

    for (const char *p = text; *p != '\0';) {
        size_t n = strcspn(p, " ");
        if (column > left && column + 1 + n > HELP_WIDTH) {
            fprintf(out, "\n%*s", (int)left, "");
            column = left;
        } else if (column > left) {
            fputc(' ', out);
            column++;
        }
        fprintf(out, "%.*s", (int)n, p);
        column += n;
        p += n;
        p += strspn(p, " ");
    }
    fputc('\n', out);
}

static void print_row(FILE *out, const char *left, const char *right, size_t width)
{
    size_t n = strlen(left);

    if (n + 2 > width)
        fprintf(out, "%s\n%*s", left, (int)width, "");
    else
        fprintf(out, "%-*s", (int)width, left);
    print_wrapped(out, right, width);
}

void opt_help(const struct opt_def *defs, size_t count, FILE *out)
{
    size_t width = strlen("  -h, --help") + 2;

    for (size_t i = 0; i < count; i++) {
        auto_buf struct buf left = BUF_INIT(1024);
        row_left(&defs[i], &left);
        if (!defs[i].hidden && left.len + 2 > width)
            width = left.len + 2 < HELP_LEFT_MAX ? left.len + 2 : HELP_LEFT_MAX;
    }
    for (size_t i = 0; i < count; i++) {
        if (defs[i].hidden)
            continue;
        auto_buf struct buf left = BUF_INIT(1024), right = BUF_INIT(4096);
        row_left(&defs[i], &left);
        row_right(&defs[i], &right);
        print_row(out, buf_text(&left), buf_text(&right), width);
    }
    bool letter_free = find_letter(defs, count, 'h') == NULL;
    print_row(out, letter_free ? "  -h, --help" : "      --help", "show this help", width);
}

void opt_release(const struct opt_def *defs, size_t count, void *options)
{
    for (size_t i = 0; i < count; i++)
        if (defs[i].type == OPT_LIST)
            list_clear(field(&defs[i], options));
}
