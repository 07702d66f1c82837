/*
 * control.h — how a coordinator proves to the operator that it belongs to a job. Pure.
 *
 * The channel is a WebSocket at <control>/control/<namespace>/<job>, subprotocol CONTROL_PROTOCOL, with the header
 * "Authorization: Bearer <token>". The token is made from the job's key, which only its sidecars and the operator have, and from
 * the job's UID; it does not tell the key. Messages are the texts of job/report.h, both ways.
 */
#ifndef JOB_CONTROL_H
#define JOB_CONTROL_H

#include "base/crypto.h"

#define CONTROL_PROTOCOL "ringmaster.dev"
#define CONTROL_PATH "/control/"
#define CONTROL_TOKEN_MAX (2 * CRYPTO_MAC_BYTES + 1)
#define CONTROL_MESSAGE_MAX (8u << 20)

void control_token(const uint8_t key[CRYPTO_KEY_BYTES], const char *job_uid, char ret_token[CONTROL_TOKEN_MAX]);

#endif
