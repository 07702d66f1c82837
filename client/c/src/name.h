/*
 * name.h — tensor names as the engine takes them. Pure: the same text gives the same name on every rank.
 */
#ifndef CLIENT_NAME_H
#define CLIENT_NAME_H

#include <stdint.h>

#include "wire/shm.h"

#define NAME_PIECE_ROOM 8u /* "#1234567" is added to the name of a piece */

uint64_t name_hash(const char *name); /* FNV-1a */
/* What does not fit becomes its beginning, '~' and 16 hexadecimal digits of its hash. */
void name_short(char ret_name[SHM_NAME_MAX], const char *name);
/* The name of piece k of a tensor; `name` came from name_short. */
void name_piece(char ret_name[SHM_NAME_MAX], const char *name, uint32_t piece);

#endif
