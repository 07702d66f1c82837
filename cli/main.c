/*
 * ringmaster — the command. The sub-commands are listed in command.c; each lives in its own command_<name>.c.
 */
#include "cli/command.h"

int main(int argc, char **argv)
{
    size_t count;
    const struct command *const *commands = command_list(&count);
    return command_main(commands, count, argc, argv);
}
