// Vision transformers, diffusion and convolutional models.

fn image_model(name: &str, vb: VarBuilder<'static>) -> Result<Run> {
    let dtype = vb.dtype();
    Ok(match name {
        "vit" | "vit train" => {
            let config = config(json!({
                "hidden_size": 384, "num_hidden_layers": 12, "num_attention_heads": 6, "intermediate_size": 1536,
                "hidden_act": "gelu", "layer_norm_eps": 1e-12, "image_size": 224, "patch_size": 16,
                "num_channels": 3, "qkv_bias": true
            }))?;
            let (model, x) = (
                models::vit::Model::new(&config, 1000, vb)?,
                wave(&[1, 3, 224, 224], dtype)?,
            );
            Box::new(move || model.forward(&x))
        }
        "dinov2" => vision!(
            models::dinov2::DinoVisionTransformer::new(vb, 3, 384, 6)?,
            [1, 3, 518, 518],
            dtype
        ),
        "segformer" => {
            let config = config(json!({
                "num_channels": 3, "num_encoder_blocks": 4, "depths": [2, 2, 2, 2], "sr_ratios": [8, 4, 2, 1],
                "hidden_sizes": [32, 64, 160, 256], "patch_sizes": [7, 3, 3, 3], "strides": [4, 2, 2, 2],
                "num_attention_heads": [1, 2, 5, 8], "mlp_ratios": [4, 4, 4, 4], "hidden_act": "gelu",
                "layer_norm_eps": 1e-6, "decoder_hidden_size": 256
            }))?;
            vision!(
                models::segformer::SemanticSegmentationModel::new(&config, 150, vb)?,
                [1, 3, 224, 224],
                dtype
            )
        }
        "sam encoder" => vision!(
            models::segment_anything::image_encoder::ImageEncoderViT::new(
                448,
                16,
                3,
                384,
                4,
                6,
                256,
                true,
                true,
                true,
                14,
                &[1, 3],
                vb
            )?,
            [1, 3, 448, 448],
            dtype
        ),
        "sam tiny vit" => vision!(
            models::segment_anything::tiny_vit::tiny_vit_5m(vb)?,
            [1, 3, 1024, 1024],
            dtype
        ),
        "sd unet" | "sd unet train" => {
            use models::stable_diffusion::unet_2d::{
                BlockConfig, UNet2DConditionModel, UNet2DConditionModelConfig,
            };
            let block = |out_channels, use_cross_attn| BlockConfig {
                out_channels,
                use_cross_attn,
                attention_head_dim: 8,
            };
            let config = UNet2DConditionModelConfig {
                blocks: vec![block(128, Some(1)), block(256, Some(1)), block(512, None)],
                layers_per_block: 1,
                cross_attention_dim: 768,
                ..Default::default()
            };
            let model = UNet2DConditionModel::new(vb, 4, 4, false, config)?;
            let size = if name == "sd unet" { 32 } else { 8 };
            let (x, text) = (
                wave(&[1, 4, size, size], dtype)?,
                wave(&[1, 77, 768], dtype)?,
            );
            Box::new(move || model.forward(&x, 500., &text))
        }
        "sd vae decoder" => {
            use models::stable_diffusion::vae::{AutoEncoderKL, AutoEncoderKLConfig};
            let config = AutoEncoderKLConfig {
                block_out_channels: vec![64, 128, 256, 256],
                layers_per_block: 2,
                latent_channels: 4,
                norm_num_groups: 32,
                use_quant_conv: true,
                use_post_quant_conv: true,
            };
            let (model, x) = (
                AutoEncoderKL::new(vb, 3, 3, config)?,
                wave(&[1, 4, 16, 16], dtype)?,
            );
            Box::new(move || model.decode(&x))
        }
        _ => candle_core::bail!("no model is called {name}"),
    })
}

fn convolutional(name: &str, vb: VarBuilder<'static>) -> Result<Run> {
    let dtype = vb.dtype();
    let train = name.ends_with(" train");
    let dims = match name {
        "resnet18 train" => [2, 3, 112, 112],
        _ if train => [1, 3, 64, 64],
        _ => [1, 3, 224, 224],
    };
    Ok(match name.trim_end_matches(" train") {
        "convnext atto" => vision!(
            models::convnext::convnext(&models::convnext::Config::atto(), 1000, vb)?,
            dims,
            dtype
        ),
        "convnext tiny" => vision!(
            models::convnext::convnext(&models::convnext::Config::tiny(), 1000, vb)?,
            dims,
            dtype
        ),
        "efficientnet" => {
            use models::efficientnet::{EfficientNet, MBConvConfig};
            vision!(
                EfficientNet::new(vb, MBConvConfig::b0(), 1000)?,
                dims,
                dtype
            )
        }
        "mobilenetv4" => {
            vision!(
                models::mobilenetv4::mobilenetv4(&models::mobilenetv4::Config::small(), 1000, vb)?,
                dims,
                dtype
            )
        }
        "mobileone" => vision!(
            models::mobileone::mobileone(&models::mobileone::Config::s0(), 1000, vb)?,
            dims,
            dtype
        ),
        "repvgg" => vision!(
            models::repvgg::repvgg(&models::repvgg::Config::a0(), 1000, vb)?,
            dims,
            dtype
        ),
        "resnet18" => vision!(models::resnet::resnet18(1000, vb)?, dims, dtype),
        "resnet50" => vision!(models::resnet::resnet50(1000, vb)?, dims, dtype),
        _ => candle_core::bail!("no model is called {name}"),
    })
}
