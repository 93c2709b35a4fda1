use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{MapAccess, Visitor};

use super::Dtype;

/// The longest header that is read: the format's own limit.
pub(super) const MOST_HEADER_BYTES: u64 = 100_000_000;

/// The key of a header that is no tensor: free text about the file.
const METADATA: &str = "__metadata__";

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorEntry {
    /// How values are stored, as the header names it.
    pub dtype: String,
    /// Dimensions, outermost first; none for a scalar.
    pub shape: Vec<u64>,
    /// Where the values begin in the file.
    pub offset: u64,
    /// Bytes of values.
    pub bytes: u64,
}

impl TensorEntry {
    /// The number of values.
    pub fn values(&self) -> u64 {
        self.shape.iter().product()
    }

    /// How values are stored, if it is a type whose values can be read.
    pub fn known_dtype(&self) -> Option<Dtype> {
        Dtype::named(&self.dtype)
    }
}

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

enum Item {
    Tensor(Entry),
    Metadata,
}

/// A header's items in its own order; serde_json's map would let the second of two equal names win.
struct Items(Vec<(String, Item)>);

impl<'de> Deserialize<'de> for Items {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Each;
        impl<'de> Visitor<'de> for Each {
            type Value = Items;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Items, A::Error> {
                let mut items = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    let item = if name == METADATA {
                        map.next_value::<serde::de::IgnoredAny>()?;
                        Item::Metadata
                    } else {
                        Item::Tensor(map.next_value()?)
                    };
                    items.push((name, item));
                }
                Ok(Items(items))
            }
        }
        deserializer.deserialize_map(Each)
    }
}

/// Reads a header whose values begin at `section` of a file of `file_bytes`, and checks every claim; what is
/// wrong, if something is.
pub(super) fn parse(
    json: &[u8],
    section: u64,
    file_bytes: u64,
) -> Result<BTreeMap<String, TensorEntry>, String> {
    let Items(items) =
        serde_json::from_slice(json).map_err(|error| format!("the header is damaged: {error}"))?;
    let room = file_bytes.saturating_sub(section);
    let mut tensors = BTreeMap::new();
    for (name, item) in items {
        let Item::Tensor(entry) = item else { continue };
        let tensor = check(entry, section, room).map_err(|fault| format!("tensor {name:?} {fault}"))?;
        if tensors.insert(name.clone(), tensor).is_some() {
            return Err(format!("tensor {name:?} occurs twice"));
        }
    }
    check_overlap(&tensors)?;
    Ok(tensors)
}

fn check(entry: Entry, section: u64, room: u64) -> Result<TensorEntry, String> {
    let Entry { dtype, shape, data_offsets: [begin, end] } = entry;
    let Some(bytes) = end.checked_sub(begin) else {
        return Err(format!("ends at byte {end}, before it begins at {begin}; the header is damaged"));
    };
    if end > room {
        return Err(format!(
            "ends at byte {end}, but the file has {room} bytes of values; it is cut short, download it again"
        ));
    }
    let values = shape.iter().try_fold(1_u64, |values, size| values.checked_mul(*size));
    let Some(values) = values else {
        return Err(format!("has the shape {shape:?}, more values than can be counted"));
    };
    if let Some(known) = Dtype::named(&dtype)
        && values.checked_mul(known.bytes() as u64) != Some(bytes)
    {
        return Err(format!("has {bytes} bytes, which is not what {dtype} of shape {shape:?} takes"));
    }
    // Cannot overflow: the end lies within the file.
    Ok(TensorEntry { dtype, shape, offset: section + begin, bytes })
}

fn check_overlap(tensors: &BTreeMap<String, TensorEntry>) -> Result<(), String> {
    let mut order: Vec<_> = tensors.iter().filter(|(_, tensor)| tensor.bytes > 0).collect();
    order.sort_by_key(|(_, tensor)| tensor.offset);
    for pair in order.windows(2) {
        let ((first, before), (second, after)) = (pair[0], pair[1]);
        if before.offset + before.bytes > after.offset {
            return Err(format!("the values of tensors {first:?} and {second:?} overlap"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(json: &str) -> Result<BTreeMap<String, TensorEntry>, String> {
        parse(json.as_bytes(), 100, 140)
    }

    #[test]
    fn sound_headers_are_read() {
        let tensors = parsed(
            r#"{"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2,3],"data_offsets":[8,32]},
                "a":{"dtype":"F16","shape":[],"data_offsets":[0,2]},"e":{"dtype":"F32","shape":[0],"data_offsets":[4,4]}}"#,
        )
        .unwrap();
        assert_eq!(tensors.keys().collect::<Vec<_>>(), ["a", "b", "e"]);
        assert_eq!((tensors["b"].offset, tensors["b"].values()), (108, 6));
        assert_eq!(tensors["a"].values(), 1);
    }

    #[test]
    fn every_claim_is_checked() {
        let table = [
            (r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}"#, "before it begins"),
            (r#"{"a":{"dtype":"F32","shape":[11],"data_offsets":[0,44]}}"#, "cut short"),
            (r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551615]}}"#, "cut short"),
            (r#"{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}"#, "not what F32"),
            (
                r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296,16],"data_offsets":[0,8]}}"#,
                "more values than can be counted",
            ),
            (
                r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}"#,
                "overlap",
            ),
            (
                r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}"#,
                "occurs twice",
            ),
            (r#"{"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}}"#, "damaged"),
            (r#"{"a":"#, "damaged"),
            ("[]", "damaged"),
        ];
        for (json, part) in table {
            let fault = parsed(json).unwrap_err();
            assert!(fault.contains(part), "{json}: {fault}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_header_panics(json in ".{0,200}", section in 0_u64..300, size in 0_u64..300) {
            let _ = parse(json.as_bytes(), section, size);
        }

        #[test]
        fn no_offsets_panic(begin: u64, end: u64, a: u64, b: u64, size: u64) {
            let json = format!(r#"{{"a":{{"dtype":"F16","shape":[{a},{b}],"data_offsets":[{begin},{end}]}}}}"#);
            let _ = parse(json.as_bytes(), 10, size);
        }
    }
}
