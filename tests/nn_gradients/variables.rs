//! `candle_nn::var_builder` and `var_map`: what they hand out are the variables themselves.

use super::cases;
use super::layers::vb;
use candle_core::{DType, Tensor, Var};
use candle_nn::Init;

cases! {
    "var_builder::VarBuilder::from_tensors", "var_builder::HashMap: SimpleBackend", "var_builder::Box: Backend",
    "var_builder::VarBuilderArgs::get", "var_builder::VarBuilderArgs::get_unchecked",
    "var_builder::VarBuilderArgs::get_unchecked_dtype", "var_builder::VarBuilderArgs::get_with_hints",
    "var_builder::VarBuilderArgs::get_with_hints_dtype", "var_builder::VarBuilderArgs::to_dtype",
    "var_builder::Backend::get", "var_builder::Backend::get_unchecked", "var_builder::SimpleBackend::get",
    "var_builder::SimpleBackend::get_unchecked", "var_builder::VarBuilderArgs::pp",
    "var_builder::VarBuilderArgs::push_prefix" => [[3, 5]] |t| {
        let vb = vb(&[("part.w", &t[0])])?;
        let part = vb.pp("part");
        // So that a conversion is on the way.
        let other = DType::F64;
        let all = [
            part.get((3, 5), "w")?,
            vb.push_prefix("part").get_unchecked("w")?,
            part.get_unchecked_dtype("w", other)?.to_dtype(DType::F32)?,
            part.get_with_hints((3, 5), "w", Init::Const(0.0))?,
            part.get_with_hints_dtype((3, 5), "w", Init::Const(0.0), other)?.to_dtype(DType::F32)?,
            part.to_dtype(other).get((3, 5), "w")?.to_dtype(DType::F32)?,
        ];
        Tensor::stack(&all, 0)?.sqr()?.sum(0)
    }, |t| t[0].sqr()? * 6.0;
    "var_builder::VarBuilder::rename_f", "var_builder::VarBuilder::rename", "var_builder::Rename: SimpleBackend",
    "var_builder::Rename::new", "var_builder::Renamer::rename", "var_builder::Box: Renamer" => [[3, 5]] |t| {
        let renamed = vb(&[("w", &t[0])])?.rename_f(|name: &str| name.replace("other", "w"));
        renamed.get((3, 5), "other")?.sqr()
    };
    "var_builder::VarBuilder::from_varmap", "var_builder::VarMap: SimpleBackend", "var_map::VarMap::get"
        => [[3, 5]] |t| {
        let vars = nn::VarMap::new();
        let var = Var::from_tensor(&t[0])?;
        vars.data().lock().expect("no panic").insert("w".into(), var);
        let vb = nn::VarBuilder::from_varmap(&vars, DType::F32, t[0].device());
        let direct = vars.get((3, 5), "w", Init::Const(0.0), DType::F32, t[0].device())?;
        vb.get((3, 5), "w")? * direct
    }, |t| t[0].sqr();
}
