/*
 * convert_parts.h — one conversion while it is under way. Internal to lib/job/convert*.c.
 */
#ifndef JOB_CONVERT_PARTS_H
#define JOB_CONVERT_PARTS_H

#include "job/convert.h"

/* What the two kinds of Kubeflow differ in. */
struct convert_kind {
    const char *kind, *roles_key, *restart_policy; /* default of restartPolicy */
    const char *container, *port_name;             /* that Kubeflow's operator looks for */
    int32_t port;
    bool pytorch;
};

struct conversion {
    const struct convert_kind *kind;
    const cJSON *from, *from_spec; /* borrowed; from_spec may be NULL */
    const struct yaml_doc *doc;
    struct problems *notes;
    cJSON *spec;                   /* of the result */
};

/* A note on a value (NULL: the whole manifest) at a path of the manifest that is read. */
void convert_note(struct conversion *c, const cJSON *value, const char *path, const char *fmt, ...) FORMAT(4, 5);

/* Notes each key of object that is none of known. */
void convert_note_unknown(struct conversion *c, const cJSON *object, const char *path, const char *const *known);

cJSON *convert_child(cJSON *object, const char *key);                                     /* made when it is not there; borrowed */
void convert_copy(const cJSON *from, const char *key, cJSON *to, const char *to_key);     /* nothing when absent or null */

/* The main container of a template, as Kubeflow's operator finds it: by name, else the first. Borrowed; NULL when there is none. */
cJSON *convert_main_container(const struct conversion *c, const cJSON *template);
void convert_put_env(const struct conversion *c, cJSON *roles, const char *name, const char *value); /* unless the user set it */

/* Each puts its part into c->spec. */
void convert_roles(struct conversion *c);
void convert_pytorch(struct conversion *c); /* after the roles: nprocPerNode, elasticPolicy, ports */

#endif
