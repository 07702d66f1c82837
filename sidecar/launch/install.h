/*
 * install.h — what a user's container needs, copied into the directory that it shares with the sidecar.
 *
 * DIR/bin/ringmaster-launch, DIR/lib/ (the shared objects) and DIR/python/ (the package). Each file is written beside its
 * place and renamed, so that a sidecar which starts again does not disturb programs that run from there.
 */
#ifndef LAUNCH_INSTALL_H
#define LAUNCH_INSTALL_H

#include "base/error.h"

/* `library_dir` holds the shared objects; NULL: where they lie beside this program, in a build directory (../client/lib) or
 * an installation (../lib/ringmaster). The Python package is found from there, too. Without libraries only the launcher is
 * copied: an unmodified program needs no more. */
MUST_CHECK int install(const char *dir, const char *library_dir, struct error *e);

#endif
