/*
 * completion.h — scripts that complete the command line in a shell, made from the commands' option tables. Pure.
 */
#ifndef CLI_COMPLETION_H
#define CLI_COMPLETION_H

#include "base/buf.h"
#include "cli/command.h"

void completion_bash(const struct command *const *commands, size_t count, struct buf *out);
void completion_zsh(const struct command *const *commands, size_t count, struct buf *out);
void completion_fish(const struct command *const *commands, size_t count, struct buf *out);

#endif
