#include "cli/completion.h"

#include <string.h>

#include "base/mem.h"

/* What asks the cluster for names: quick or not at all. */
#define JOBS "ringmaster status -o name --request-timeout 2s 2>/dev/null"

/* What the value of an option is. */
enum value { VALUE_NONE, VALUE_ANY, VALUE_FILE, VALUE_DIR, VALUE_NAMES };

static enum value value_of(const struct opt_def *d)
{
    if (d->type == OPT_BOOL)
        return VALUE_NONE;
    if (d->type == OPT_ENUM)
        return VALUE_NAMES;
    const char *value = d->value ? d->value : "";
    return strcmp(value, "FILE") == 0 ? VALUE_FILE : strncmp(value, "DIR", 3) == 0 ? VALUE_DIR : VALUE_ANY;
}

static void names_of(const struct opt_def *d, struct buf *out)
{
    for (size_t i = 0; d->names[i]; i++)
        buf_addf(out, "%s%s", i ? " " : "", d->names[i]);
}

/* In single quotes for a shell. */
static void quoted(const char *text, struct buf *out)
{
    buf_add(out, "'");
    for (const char *p = text; *p; p++)
        buf_addf(out, *p == '\'' ? "'\\%c'" : "%c", *p);
    buf_add(out, "'");
}

/* What follows the command: its own words, or the names of its commands. */
static void own_words(const struct command *c, struct buf *out)
{
    for (size_t i = 0; c->words && c->words[i]; i++)
        buf_addf(out, "%s%s", i ? " " : "", c->words[i]);
    for (size_t i = 0; c->sub && c->sub[i]; i++)
        buf_addf(out, "%s%s", i ? " " : "", strchr(c->sub[i]->name, ' ') + 1);
}

/* Option k of a command; those of its own commands follow, each flag once. NULL: there are no more. */
static const struct opt_def *option_at(const struct command *c, size_t k)
{
    if (k < c->option_count)
        return &c->options[k];
    k -= c->option_count;
    for (size_t i = 0; c->sub && c->sub[i]; i++)
        for (size_t n = 0; n < c->sub[i]->option_count; n++) {
            const struct opt_def *d = &c->sub[i]->options[n];
            bool seen = false;
            for (size_t before = 0; before < i && !seen; before++)
                for (size_t m = 0; m < c->sub[before]->option_count && !seen; m++)
                    seen = strcmp(c->sub[before]->options[m].flag, d->flag) == 0;
            if (!seen && k-- == 0)
                return d;
        }
    return NULL;
}

/* ---- bash -------------------------------------------------------------------------------------------------------------- */

static void bash_flags(const struct command *c, struct buf *out)
{
    buf_addf(out, "    %s) flags=\"", c->name);
    const struct opt_def *d;
    for (size_t i = 0; (d = option_at(c, i)); i++) {
        if (d->hidden)
            continue;
        bool inverse = d->type == OPT_BOOL && d->def && strcmp(d->def, "true") == 0;
        buf_addf(out, "--%s%s ", inverse ? "no-" : "", d->flag);
    }
    const char *const *more = c->more_flags ? c->more_flags() : NULL;
    for (size_t i = 0; more && more[i]; i++)
        buf_addf(out, "%s ", more[i]);
    buf_add(out, "--help\" ;;\n");
}

/* The pattern of one option's spellings: "run:--file|run:-f". */
static void bash_case(const struct command *c, const struct opt_def *d, struct buf *out)
{
    buf_addf(out, "    %s:--%s", c->name, d->flag);
    if (d->letter)
        buf_addf(out, "|%s:-%c", c->name, d->letter);
    switch (value_of(d)) {
    case VALUE_FILE: buf_add(out, ") COMPREPLY=($(compgen -f -- \"$cur\")); return ;;\n"); break;
    case VALUE_DIR: buf_add(out, ") COMPREPLY=($(compgen -d -- \"$cur\")); return ;;\n"); break;
    case VALUE_NAMES:
        buf_add(out, ") COMPREPLY=($(compgen -W \"");
        names_of(d, out);
        buf_add(out, "\" -- \"$cur\")); return ;;\n");
        break;
    default: buf_add(out, ") return ;;\n"); break;
    }
}

static void bash_words(const struct command *c, struct buf *out)
{
    switch (c->takes) {
    case WORDS_NONE: break;
    case WORDS_FILES: buf_addf(out, "    %s) COMPREPLY=($(compgen -f -- \"$cur\")) ;;\n", c->name); break;
    case WORDS_COMMAND: buf_addf(out, "    %s) COMPREPLY=($(compgen -A command -A file -- \"$cur\")) ;;\n", c->name); break;
    case WORDS_JOB: buf_addf(out, "    %s) COMPREPLY=($(compgen -d -W \"$(" JOBS ")\" -- \"$cur\")) ;;\n", c->name); break;
    case WORDS_OWN:
        buf_addf(out, "    %s) COMPREPLY=($(compgen -W \"", c->name);
        own_words(c, out);
        buf_add(out, "\" -- \"$cur\")) ;;\n");
        break;
    }
}

void completion_bash(const struct command *const *commands, size_t count, struct buf *out)
{
    const struct opt_def *d;
    buf_add(out, "# Completion of ringmaster for bash: source <(ringmaster completion bash)\n"
                 "_ringmaster() {\n"
                 "    local cur prev command flags=\"\"\n"
                 "    cur=\"${COMP_WORDS[COMP_CWORD]}\" prev=\"${COMP_WORDS[COMP_CWORD-1]}\" command=\"${COMP_WORDS[1]}\"\n"
                 "    COMPREPLY=()\n"
                 "    if [ \"$COMP_CWORD\" -eq 1 ] || { [ \"$COMP_CWORD\" -eq 2 ] && [ \"$command\" = help ]; }; then\n"
                 "        COMPREPLY=($(compgen -W \"");
    for (size_t i = 0; i < count; i++)
        buf_addf(out, "%s ", commands[i]->name);
    buf_add(out, "help\" -- \"$cur\"))\n        return\n    fi\n    case \"$command:$prev\" in\n");
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; (d = option_at(commands[i], k)); k++)
            if (!d->hidden && value_of(d) != VALUE_NONE)
                bash_case(commands[i], d, out);
    buf_add(out, "    esac\n    case \"$command\" in\n");
    for (size_t i = 0; i < count; i++)
        bash_flags(commands[i], out);
    buf_add(out, "    esac\n    if [[ \"$cur\" == -* ]]; then\n        COMPREPLY=($(compgen -W \"$flags\" -- \"$cur\"))\n        return\n    fi\n"
                 "    case \"$command\" in\n");
    for (size_t i = 0; i < count; i++)
        bash_words(commands[i], out);
    buf_add(out, "    esac\n}\ncomplete -F _ringmaster ringmaster\n");
}

/* ---- zsh --------------------------------------------------------------------------------------------------------------- */

/* The help of an option inside '...[...]': brackets and colons mean something to _arguments. */
static void zsh_help(const char *text, struct buf *out)
{
    for (const char *p = text; *p; p++) {
        if (strchr("[]:\\", *p))
            buf_add(out, "\\");
        buf_addf(out, *p == '\'' ? "'\\%c'" : "%c", *p);
    }
}

static void zsh_option(const struct opt_def *d, struct buf *out)
{
    bool repeats = d->type == OPT_LIST, inverse = d->type == OPT_BOOL && d->def && strcmp(d->def, "true") == 0;
    if (d->letter)
        buf_addf(out, "            '%s'{-%c,--%s}'[", repeats ? "*" : "", d->letter, d->flag);
    else
        buf_addf(out, "            '%s--%s%s[", repeats ? "*" : "", inverse ? "no-" : "", d->flag);
    zsh_help(d->help ? d->help : "", out);
    buf_add(out, "]");
    switch (value_of(d)) {
    case VALUE_NONE: break;
    case VALUE_ANY: buf_add(out, ":value: "); break;
    case VALUE_FILE: buf_add(out, ":file:_files"); break;
    case VALUE_DIR: buf_add(out, ":directory:_files -/"); break;
    case VALUE_NAMES:
        buf_add(out, ":value:(");
        names_of(d, out);
        buf_add(out, ")");
        break;
    }
    buf_add(out, "' \\\n");
}

static void zsh_words(const struct command *c, struct buf *out)
{
    switch (c->takes) {
    case WORDS_NONE: buf_add(out, "            && return 0\n"); break;
    case WORDS_FILES: buf_add(out, "            '*:file:_files'\n"); break;
    case WORDS_COMMAND: buf_add(out, "            '*::command:_normal'\n"); break;
    case WORDS_JOB: buf_add(out, "            '*:job:_ringmaster_jobs'\n"); break;
    case WORDS_OWN:
        buf_add(out, "            '*:word:(");
        own_words(c, out);
        buf_add(out, ")'\n");
        break;
    }
}

void completion_zsh(const struct command *const *commands, size_t count, struct buf *out)
{
    const struct opt_def *d;
    buf_add(out, "#compdef ringmaster\n# Completion of ringmaster for zsh: ringmaster completion zsh > \"${fpath[1]}/_ringmaster\"\n"
                 "_ringmaster_jobs() {\n    compadd -- ${(f)\"$(" JOBS ")\"}\n    _files -/\n}\n"
                 "_ringmaster() {\n    if (( CURRENT == 2 )); then\n        local -a commands=(\n");
    for (size_t i = 0; i < count; i++) {
        auto_buf struct buf row = BUF_INIT(1024);
        buf_addf(&row, "%s:%s", commands[i]->name, commands[i]->summary);
        buf_add(out, "            ");
        quoted(buf_text(&row), out);
        buf_add(out, "\n");
    }
    buf_add(out, "            'help:show the page of a command'\n        )\n        _describe command commands\n        return\n    fi\n"
                 "    local command=$words[2]\n    shift words\n    (( CURRENT-- ))\n    case $command in\n");
    for (size_t i = 0; i < count; i++) {
        buf_addf(out, "        %s) _arguments \\\n", commands[i]->name);
        for (size_t k = 0; (d = option_at(commands[i], k)); k++)
            if (!d->hidden)
                zsh_option(d, out);
        const char *const *more = commands[i]->more_flags ? commands[i]->more_flags() : NULL;
        for (size_t k = 0; more && more[k]; k++)
            buf_addf(out, "            '%s[as in horovodrun]' \\\n", more[k]);
        buf_add(out, "            '--help[show its page]' \\\n");
        zsh_words(commands[i], out);
        buf_add(out, "            ;;\n");
    }
    buf_add(out, "    esac\n}\nif [ \"$funcstack[1]\" = _ringmaster ]; then\n    _ringmaster \"$@\"\nelse\n    compdef _ringmaster ringmaster\nfi\n");
}

/* ---- fish -------------------------------------------------------------------------------------------------------------- */

static void fish_option(const struct command *c, const struct opt_def *d, struct buf *out)
{
    bool inverse = d->type == OPT_BOOL && d->def && strcmp(d->def, "true") == 0;
    buf_addf(out, "complete -c ringmaster -n '__fish_seen_subcommand_from %s' -l %s%s", c->name, inverse ? "no-" : "", d->flag);
    if (d->letter)
        buf_addf(out, " -s %c", d->letter);
    switch (value_of(d)) {
    case VALUE_NONE: break;
    case VALUE_ANY: buf_add(out, " -x"); break;
    case VALUE_FILE: buf_add(out, " -r -F"); break;
    case VALUE_DIR: buf_add(out, " -x -a '(__fish_complete_directories)'"); break;
    case VALUE_NAMES:
        buf_add(out, " -x -a '");
        names_of(d, out);
        buf_add(out, "'");
        break;
    }
    buf_add(out, " -d ");
    quoted(d->help ? d->help : "", out);
    buf_add(out, "\n");
}

static void fish_words(const struct command *c, struct buf *out)
{
    if (c->takes == WORDS_JOB || c->takes == WORDS_OWN || c->takes == WORDS_FILES || c->takes == WORDS_COMMAND)
        buf_addf(out, "complete -c ringmaster -n '__fish_seen_subcommand_from %s' ", c->name);
    switch (c->takes) {
    case WORDS_NONE: break;
    case WORDS_FILES: buf_add(out, "-F\n"); break;
    case WORDS_COMMAND: buf_add(out, "-F -a '(__fish_complete_subcommand)'\n"); break;
    case WORDS_JOB: buf_add(out, "-f -a '(" JOBS ")'\n"); break;
    case WORDS_OWN:
        buf_add(out, "-f -a '");
        own_words(c, out);
        buf_add(out, "'\n");
        break;
    }
}

void completion_fish(const struct command *const *commands, size_t count, struct buf *out)
{
    const struct opt_def *d;
    buf_add(out, "# Completion of ringmaster for fish: ringmaster completion fish > ~/.config/fish/completions/ringmaster.fish\n"
                 "complete -c ringmaster -f\n"
                 "complete -c ringmaster -l help -d 'show its page'\n");
    for (size_t i = 0; i < count; i++) {
        buf_addf(out, "complete -c ringmaster -n __fish_use_subcommand -a %s -d ", commands[i]->name);
        quoted(commands[i]->summary, out);
        buf_add(out, "\n");
    }
    for (size_t i = 0; i < count; i++) {
        for (size_t k = 0; (d = option_at(commands[i], k)); k++)
            if (!d->hidden)
                fish_option(commands[i], d, out);
        const char *const *more = commands[i]->more_flags ? commands[i]->more_flags() : NULL;
        for (size_t k = 0; more && more[k]; k++)
            buf_addf(out, "complete -c ringmaster -n '__fish_seen_subcommand_from %s' -%s %s -d 'as in horovodrun'\n", commands[i]->name,
                     strncmp(more[k], "--", 2) == 0 ? "l" : more[k][2] ? "o" : "s", more[k] + strspn(more[k], "-"));
        fish_words(commands[i], out);
    }
}
