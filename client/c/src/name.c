#include "name.h"

#include <stdio.h>
#include <string.h>

uint64_t name_hash(const char *name)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (; *name != '\0'; name++)
        h = (h ^ (unsigned char)*name) * 0x100000001b3u;
    return h;
}

void name_short(char ret_name[SHM_NAME_MAX], const char *name)
{
    size_t most = SHM_NAME_MAX - 1 - NAME_PIECE_ROOM;
    memset(ret_name, 0, SHM_NAME_MAX);
    if (strlen(name) <= most)
        snprintf(ret_name, SHM_NAME_MAX, "%s", name);
    else
        snprintf(ret_name, SHM_NAME_MAX, "%.*s~%016llx", (int)(most - 17), name, (unsigned long long)name_hash(name));
}

void name_piece(char ret_name[SHM_NAME_MAX], const char *name, uint32_t piece)
{
    memset(ret_name, 0, SHM_NAME_MAX);
    snprintf(ret_name, SHM_NAME_MAX, "%.*s#%u", (int)(SHM_NAME_MAX - 1 - NAME_PIECE_ROOM), name, piece % 10000000u);
}
