import pytest
import torch
from safetensors.torch import load_file
from transformers import DynamicCache, GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from mrp_hf import MRPConfig, MRPForDiffusionLM, MRPGenerationConfig

IDS = torch.tensor([[5, 9, 14, 63, 3, 63, 20, 63, 8, 63], [7, 63, 2, 44, 63, 63, 11, 12, 63, 13]])


def trainable(model):
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


# Backbone


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["sdar", "sdar-block16"])
@torch.no_grad()
def test_upstream_logits(fixtures, name, attention):
    expected = load_file(fixtures / name / "expected.safetensors")
    model = MRPForDiffusionLM.from_backbone(
        fixtures / name, num_mrp_layers=0, dtype=torch.float32, attn_implementation=attention
    )
    assert model.backbone.config._attn_implementation == attention
    output = model(expected["input_ids"])
    torch.testing.assert_close(output.logits, expected["logits"], atol=1e-4, rtol=0)
    torch.testing.assert_close(output.last_hidden_state, expected["last_hidden_state"], atol=1e-4, rtol=0)
    assert output.residual_logits is None
    assert torch.equal(model.project(output.last_hidden_state), output.logits)


@pytest.mark.parametrize("name", ["sdar", "sdar-block16"])
def test_upstream_static_sequence(fixtures, name):
    expected = load_file(fixtures / name / "expected.safetensors")
    model = MRPForDiffusionLM.from_backbone(fixtures / name, num_mrp_layers=0, dtype=torch.float32)
    prompt, sequence = expected["prompt"], expected["sequence"]
    found = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=sequence.shape[1] - prompt.shape[1],
        eos_token_id=-1,
    )
    assert torch.equal(found, sequence)


@torch.no_grad()
def test_a_token_sees_earlier_blocks_and_its_own_block_only(tiny_model):
    model = tiny_model(block_length=4)
    logits = model(IDS).logits
    changed = IDS.clone()
    changed[:, 5] = 1  # in the second block
    difference = (model(changed).logits - logits).abs().amax(-1) > 0
    assert not difference[:, :4].any()
    assert difference[:, 4:].all()


@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_padding_changes_nothing_for_real_tokens(tiny_model, side):
    model = tiny_model(block_length=4)
    alone = model(IDS[:1, :7], revealed_ids=IDS[1:, :7])
    padded, revealed, real = (torch.full((2, 10), 1), torch.full((2, 10), 1), torch.ones(2, 10, dtype=torch.long))
    columns = slice(3, 10) if side == "left" else slice(0, 7)
    padded[0, columns], revealed[0, columns], padded[1] = IDS[0, :7], IDS[1, :7], IDS[1]
    real[0] = 0
    real[0, columns] = 1
    output = model(padded, attention_mask=real, revealed_ids=revealed)
    for name in ("logits", "last_hidden_state", "residual_logits"):
        torch.testing.assert_close(getattr(output, name)[0, columns], getattr(alone, name)[0], atol=1e-5, rtol=0)
        assert getattr(output, name).isfinite().all()


@torch.no_grad()
def test_explicit_mask_and_caches_block_by_block(tiny_model):
    model = tiny_model(num_mrp_layers=2, block_length=5)
    whole = model(IDS, revealed_ids=IDS.flip(0))
    position_ids, mask = model._positions_and_mask(IDS, None, None, None)
    caches = {"cache": DynamicCache(), "mrp_cache": DynamicCache()}
    for rows in (slice(0, 5), slice(5, 10)):
        part = model(
            IDS[:, rows],
            attention_mask=mask[:, :, rows, : rows.stop],
            position_ids=position_ids[:, rows],
            revealed_ids=IDS.flip(0)[:, rows],
            **caches,
        )
        torch.testing.assert_close(part.logits, whole.logits[:, rows], atol=1e-5, rtol=0)
        torch.testing.assert_close(part.residual_logits, whole.residual_logits[:, rows], atol=1e-5, rtol=0)
    assert [cache.get_seq_length() for cache in caches.values()] == [10, 10]


def test_wrong_masks_are_named(tiny_model):
    model = tiny_model()
    with pytest.raises(ValueError, match="4D `attention_mask` must be additive floats"):
        model(IDS, attention_mask=torch.ones(2, 1, 10, 10, dtype=torch.bool))
    with pytest.raises(ValueError, match="needs `position_ids`"):
        model(IDS, attention_mask=torch.zeros(2, 1, 10, 10))
    with pytest.raises(ValueError, match=r"`attention_mask` has shape \(2, 9\)"):
        model(IDS, attention_mask=torch.ones(2, 9))
    with pytest.raises(ValueError, match="`cache` needs a 4D"):
        model(IDS, cache=DynamicCache())
    with pytest.raises(TypeError):
        model(IDS, labels=IDS)


def test_a_model_without_a_head_says_so(tiny_model):
    model = tiny_model(num_mrp_layers=0)
    assert model.mrp_head is None
    with pytest.raises(ValueError, match="has no head"):
        model(IDS, revealed_ids=IDS)


@torch.no_grad()
def test_attention_implementation_reaches_backbone_and_head(tiny_model):
    model = tiny_model(num_mrp_layers=2)
    before = model(IDS, revealed_ids=IDS)
    model.set_attn_implementation("eager")
    assert {part.config._attn_implementation for part in (model, model.backbone, model.mrp_head)} == {"eager"}
    assert model.mrp_head.layers[1].self_attn.config._attn_implementation == "eager"
    after = model(IDS, revealed_ids=IDS)
    torch.testing.assert_close(after.residual_logits, before.residual_logits, atol=1e-5, rtol=0)
    for refused in ("flash_attention_2", "flex_attention"):
        with pytest.raises((ValueError, ImportError)):
            model.set_attn_implementation(refused)


# Frozen backbone, learning head


def test_training_mode_leaves_the_backbone_alone(tiny_model):
    model = tiny_model().train()
    assert model.training
    assert model.mrp_head.training
    assert not any(module.training for module in model.backbone.modules())
    assert trainable(model) == {f"mrp_head.{name}" for name, _ in model.mrp_head.named_parameters()}
    assert not any(module.training for module in model.eval().modules())


def test_dropout_of_the_backbone_never_acts_and_that_of_the_head_does():
    config = Qwen3Config(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=16,
        attention_dropout=0.5,
        initializer_range=0.3,
    )
    model = MRPForDiffusionLM.from_backbone(
        Qwen3ForCausalLM(config), num_mrp_layers=1, mask_token_id=63, block_length=4, mrp_initializer_range=0.3
    ).train()
    first, second = (model(IDS, revealed_ids=IDS) for _ in range(2))
    assert torch.equal(first.logits, second.logits)
    assert not torch.equal(first.residual_logits, second.residual_logits)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_every_head_parameter_and_no_other_gets_a_gradient(tiny_model, checkpointing):
    model = tiny_model(num_mrp_layers=2).train()
    if checkpointing:
        model.activation_checkpointing_enable()
        assert model.mrp_head.layers[0].gradient_checkpointing
    model(IDS, revealed_ids=IDS.flip(0)).residual_logits.square().mean().backward()
    got = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert got == trainable(model)
    assert all(parameter.grad.abs().sum() > 0 for name, parameter in model.named_parameters() if name in got)


def test_gradient_checkpointing_changes_no_gradient(tiny_model):
    gradients = []
    for checkpointing in (False, True):
        model = tiny_model(num_mrp_layers=2).train()
        if checkpointing:
            model.activation_checkpointing_enable()
        model(IDS, revealed_ids=IDS.flip(0)).residual_logits.square().mean().backward()
        gradients.append([parameter.grad for parameter in model.mrp_head.parameters()])
    for plain, checkpointed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, checkpointed)


# Attaching


def test_a_loaded_backbone_is_used_as_it_is(tiny_model):
    backbone = tiny_model().backbone
    backbone.requires_grad_(True)
    backbone.resize_token_embeddings(70)  # replaces modules that a careless initialisation would draw anew
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    model = MRPForDiffusionLM.from_backbone(backbone, num_mrp_layers=1, mask_token_id=69, block_length=4)
    assert model.backbone is backbone
    assert model.config.backbone_config is backbone.config
    assert all(torch.equal(tensor, before[name]) for name, tensor in backbone.state_dict().items())
    assert not any(parameter.requires_grad for parameter in backbone.parameters())
    with pytest.raises(ValueError, match="set them on the model that you pass"):
        MRPForDiffusionLM.from_backbone(backbone, dtype=torch.float32, mask_token_id=69, block_length=4)


def test_special_tokens_come_from_the_backbone_and_sampling_settings_do_not(tiny_model):
    backbone = tiny_model().backbone
    backbone.generation_config = GenerationConfig(eos_token_id=[3, 4], pad_token_id=3, do_sample=True, temperature=0.7)
    model = MRPForDiffusionLM.from_backbone(backbone, mask_token_id=63, block_length=4)
    assert type(model.generation_config) is MRPGenerationConfig
    assert model.generation_config.eos_token_id == [3, 4]
    assert model.generation_config.pad_token_id == 3
    assert not model.generation_config.do_sample


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_rotary_frequencies_exact(fixtures, dtype, tmp_path):
    exact = MRPForDiffusionLM.from_backbone(fixtures / "sdar", num_mrp_layers=1, dtype=torch.float32)
    model = MRPForDiffusionLM.from_backbone(fixtures / "sdar", num_mrp_layers=1, dtype=dtype)
    assert model.config.dtype == model.config.backbone_config.dtype == dtype
    model.save_pretrained(tmp_path)
    for half in (model, MRPForDiffusionLM.from_pretrained(tmp_path)):
        assert {parameter.dtype for parameter in half.parameters()} == {dtype}
        assert half.dtype == dtype
        assert torch.equal(half.mrp_head.rotary_emb.inv_freq, exact.mrp_head.rotary_emb.inv_freq)
        ids = torch.tensor([[1, 2, 3, 4, 5]])
        output = half(ids, attention_mask=torch.tensor([[0, 0, 1, 1, 1]]), revealed_ids=ids)
        assert output.residual_logits.dtype == dtype
        assert output.residual_logits.isfinite().all()


def test_device_map(fixtures, tmp_path):
    model = MRPForDiffusionLM.from_backbone(fixtures / "sdar", num_mrp_layers=1, device_map="cpu")
    model.save_pretrained(tmp_path)
    again = MRPForDiffusionLM.from_pretrained(tmp_path, device_map="cpu")
    assert torch.equal(again(IDS, revealed_ids=IDS).residual_logits, model(IDS, revealed_ids=IDS).residual_logits)
    assert again._no_split_modules == {"Qwen3DecoderLayer"}


def test_a_fresh_head_does_not_depend_on_how_the_backbone_came(fixtures):
    by_name, by_model = (
        MRPForDiffusionLM.from_backbone(source, num_mrp_layers=1, mask_token_id=158, block_length=4)
        for source in (
            fixtures / "sdar",
            MRPForDiffusionLM.from_backbone(fixtures / "sdar", num_mrp_layers=0).backbone,
        )
    )
    assert by_name.config.backbone_name_or_path == by_model.config.backbone_name_or_path == str(fixtures / "sdar")
    assert by_name.mrp_head.state_dict().keys() == by_model.mrp_head.state_dict().keys()
    assert torch.equal(by_name(IDS).logits, by_model(IDS).logits)


# Embeddings


@pytest.mark.parametrize("tied", [True, False])
def test_embeddings_are_the_backbones_and_can_be_resized(tiny_model, tied, tmp_path):
    model = tiny_model(tie_word_embeddings=tied)
    assert model.get_input_embeddings() is model.backbone.model.embed_tokens
    assert model.get_output_embeddings() is model.backbone.lm_head
    before = model(IDS).logits
    model.resize_token_embeddings(80)
    assert model.config.vocab_size == model.backbone.config.vocab_size == 80
    assert model.get_input_embeddings().weight.shape[0] == model.get_output_embeddings().weight.shape[0] == 80
    assert (model.get_input_embeddings().weight is model.get_output_embeddings().weight) is tied
    assert not any(parameter.requires_grad for parameter in model.backbone.parameters())
    torch.testing.assert_close(model(IDS).logits[..., :64], before)
    model.save_pretrained(tmp_path)
    assert torch.equal(MRPForDiffusionLM.from_pretrained(tmp_path)(IDS).logits, model(IDS).logits)
    with pytest.raises(ValueError, match=r"`new_num_tokens` is 63.*mask token 63.*at least 64"):
        model.resize_token_embeddings(63)


def test_embeddings_can_be_replaced(tiny_model):
    model = tiny_model()
    embeddings, lm_head = torch.nn.Embedding(64, 32), torch.nn.Linear(32, 64, bias=False)
    model.set_input_embeddings(embeddings)
    model.set_output_embeddings(lm_head)
    assert model.backbone.model.embed_tokens is embeddings
    assert model.backbone.lm_head is lm_head


def test_a_model_from_its_config_alone(tiny_model):
    config = MRPConfig.from_dict(tiny_model(num_mrp_layers=2).config.to_dict())
    model = MRPForDiffusionLM(config)
    assert len(model.mrp_head.layers) == 2
    assert model.mrp_head.eh_proj.weight.std().item() == pytest.approx(0.3, rel=0.1)
    config.block_length = 0
    with pytest.raises(ValueError, match="block_length"):
        MRPForDiffusionLM(config)
