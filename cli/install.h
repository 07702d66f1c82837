/*
 * install.h — where the other programs and libraries lie: next to this one, in a build tree or below a prefix.
 */
#ifndef CLI_INSTALL_H
#define CLI_INSTALL_H

#include "base/error.h"

struct install {
    char *launcher, *sidecar;   /* programs */
    char *library_dir;          /* libringmaster.so; may not be there: jobs that do not use the client run without it */
    char *python_dir;           /* the package `ringmaster` */
};

/* `dir` is a prefix (DIR/bin, DIR/lib/ringmaster, DIR/share/ringmaster) or a build directory (DIR/bin, DIR/client); NULL: where
 * this program is. ERROR_NOT_FOUND says which program is missing and what to do. */
MUST_CHECK int install_find(const char *dir, struct install *ret, struct error *e);
void install_release(struct install *i);

#endif
