/*
 * ringmaster — the command. One row a sub-command; each lives in its own command_<name>.c.
 */
#include "base/mem.h"
#include "cli/command.h"

static const struct command COMMANDS[] = {
    { "run", "run a job on this machine and watch it", command_run },
    { "status", "show how a job of 'run' stands", command_status },
    { "logs", "show what the members of a job wrote", command_logs },
    { "validate", "check manifests; report every problem with its place", command_validate },
    { "render", "print the pods, Service and TF_CONFIG of a manifest", command_render },
    { "convert", "turn a TFJob or PyTorchJob of Kubeflow into a TrainingJob", command_convert },
    { "version", "print the version", command_version },
};

int main(int argc, char **argv)
{
    return command_main(COMMANDS, COUNT(COMMANDS), argc, argv);
}
