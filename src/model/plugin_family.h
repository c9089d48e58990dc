/* plugin_family.h - builds the spec of a model family of a plug-in (miles/model.h).
 *
 * Each function of a miles_graph checks its arguments, so that a wrong call ends with a
 * sentence, and then calls its counterpart of build.h.
 *
 * thread: one; used only while a spec is being opened. */
#ifndef ML_MODEL_PLUGIN_FAMILY_H
#define ML_MODEL_PLUGIN_FAMILY_H

#include "miles/model.h"
#include "model/build.h"

/* Errors are recorded in the config. */
void ml_plugin_family_build(ml_builder *b, const miles_family *family);

#endif
