//! wasmtime, with guard pages instead of bounds checks, with and without fuel.

use std::hint::black_box;

use wasmtime::{Config, Engine, Instance, Module, Store, TypedFunc};

use crate::list::{HEAD, NODES, key, region, value};
use crate::rounds::Case;

const TEXT: &str = r#"(module
  (memory (export "memory") 1)
  (func (export "search") (param $at i32) (param $key i64) (result i64)
    (loop $again
      (if (i64.eq (i64.load (local.get $at)) (local.get $key))
        (then (return (i64.load offset=8 (local.get $at)))))
      (local.set $at (i32.wrap_i64 (i64.load offset=16 (local.get $at))))
      (br_if $again (local.get $at)))
    (i64.const -1)))"#;

type Search = TypedFunc<(u32, u64), u64>;

fn engine(fuel: bool) -> Engine {
    let mut config = Config::new();
    config.consume_fuel(fuel);
    Engine::new(&config).expect("the configuration is valid")
}

fn instance(engine: &Engine, fuel: bool) -> (Store<()>, Search) {
    let module = Module::new(engine, TEXT).expect("the module is valid");
    let mut store = Store::new(engine, ());
    if fuel {
        store.set_fuel(u64::MAX / 2).expect("fuel is enabled");
    }
    let instance = Instance::new(&mut store, &module, &[]).expect("nothing is imported");
    let memory = instance.get_memory(&mut store, "memory").expect("the memory is exported");
    memory.write(&mut store, 0, &region()).expect("the memory has a page");
    let search = instance.get_typed_func(&mut store, "search").expect("the search is exported");
    (store, search)
}

/// Adds the searches.
pub(crate) fn searches(cases: &mut Vec<Case>) {
    for (name, fuel) in [("wasmtime", false), ("wasmtime, fuel", true)] {
        for n in NODES {
            let (mut store, search) = instance(&engine(fuel), fuel);
            cases.push(Case::search(name, n, move |iterations| {
                for _ in 0..iterations {
                    let parameters = (HEAD as u32, black_box(key(n)));
                    let found = search.call(&mut store, parameters);
                    assert_eq!(found.ok(), Some(value(n)));
                }
            }));
        }
    }
}

/// Adds registrations: compiling the module.
pub(crate) fn registrations(cases: &mut Vec<Case>) {
    let engine = engine(false);
    cases.push(Case::registration("wasmtime", "list search by words", move |iterations| {
        for _ in 0..iterations {
            let _ = black_box(Module::new(&engine, black_box(TEXT)));
        }
    }));
}
