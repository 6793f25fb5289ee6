//! Runs the example, whose assertions must hold.

#[path = "../../examples/register.rs"]
mod register;

#[test]
fn missing_step_of_register_is_found_and_correct_register_survives() {
    register::main().unwrap_or_else(|error| panic!("{error}"));
}
