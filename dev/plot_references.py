# plot_references.py - published results that dev/plot can show with the runs
#
# GPT-2 124M: loss of OpenAI's weights on FineWeb's validation tokens, from dev/vislog of karpathy/llm.c; HellaSwag
# acc_norm in completion style, from karpathy/build-nanogpt. llm.c: the log of its GPT-2 124M run on FineWeb, 19,560
# steps of 524,288 tokens, warm-up 700, learning rate to 0, of 2024-10-13, from KellerJordan/modded-nanogpt.
TOKENS_PER_STEP = 524288

REFERENCES = {
    '124M': {
        'vocabulary': 50257,
        'levels': {'loss': ('GPT-2 124M', 3.424958, "OpenAI's weights, by llm.c"),
                   'hellaswag': ('GPT-2 124M', 0.2955, "OpenAI's weights, by build-nanogpt")},
        'curve': {
            'name': 'llm.c 124M',
            'source': "modded-nanogpt's log of it",
            # completed steps, validation loss
            'loss': [(0, 11.0092), (250, 6.1710), (500, 5.3743), (750, 4.7097), (1000, 4.3170), (1500, 4.0060),
                     (2000, 3.8585), (4000, 3.6176), (6000, 3.5069), (8000, 3.4431), (10000, 3.3924), (12000, 3.3509),
                     (14000, 3.3149), (16000, 3.2882), (18000, 3.2746), (19560, 3.2722)],
        },
    },
}
