#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/command.h"
#include "cli/completion.h"

static const char *const SHELLS[] = { "bash", "zsh", "fish", NULL };

static int completion_command(int argc, char **argv)
{
    static void (*const WRITERS[])(const struct command *const *, size_t, struct buf *) = { completion_bash, completion_zsh, completion_fish };
    struct error e = ERROR_INIT;
    int next, code;
    char none;
    size_t count;
    if (!command_parse(&COMMAND_COMPLETION, argc, argv, false, &none, &next, &code))
        return code;
    const struct command *const *commands = command_list(&count);
    for (size_t i = 0; next + 1 == argc && SHELLS[i]; i++) {
        if (strcmp(SHELLS[i], argv[next]) != 0)
            continue;
        auto_buf struct buf out = BUF_INIT(1u << 20);
        WRITERS[i](commands, count, &out);
        fputs(buf_text(&out), stdout);
        return COMMAND_OK;
    }
    (void)error_set(&e, ERROR_INVALID, "for which shell? bash, zsh or fish");
    return command_usage("completion", &e);
}

const struct command COMMAND_COMPLETION = {
    .name = "completion", .summary = "print the completion script of a shell", .run = completion_command, .takes = WORDS_OWN, .words = SHELLS,
    .usage = "completion bash|zsh|fish",
    .about = "Prints a script that completes commands, options, their values and the names of jobs.",
    .examples = "source <(ringmaster completion bash)                       in ~/.bashrc\n"
                "ringmaster completion zsh > \"${fpath[1]}/_ringmaster\"\n"
                "ringmaster completion fish > ~/.config/fish/completions/ringmaster.fish",
};
