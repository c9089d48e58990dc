#include "rl/recipe.h"

#include "rl/builtins.h"

bool ml_recipe_is_flat(const ml_recipe *r) {
    return ml_loss_is_flat(r->loss) && r->num.entropy_coef == 0.0 &&
           !(r->num.use_kl_loss && r->num.kl_loss_coef != 0.0);
}

bool ml_recipe_compares_rewards(const ml_recipe *r) {
    bool kl = (r->advantage->needs & MILES_USES_KL) && r->num.kl_coef != 0.0;

    return ml_recipe_is_flat(r) && r->compute_advantages && r->centre_rewards && !kl &&
           !(r->use_opd && r->opd_kl_coef != 0.0);
}
