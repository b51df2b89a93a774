"""Import what warns on import before warnings become errors; the warnings are vLLM's and torch's own."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import msa_model.model
    import msa_model.plugin

    msa_model.plugin.register()
