import Foundation
import XCTest

@testable import SpecStreamKit

/// The folder that `tests/apps/test_spec_stream_kit.py` fills with what the Python runtime does.
let recordings: URL? = ProcessInfo.processInfo.environment["SPECSTREAM_RECORDINGS"].map { URL(fileURLWithPath: $0) }

typealias JSON = [String: Any]

/// The files whose names begin with this, or a skipped test where there is no folder.
func files(_ prefix: String) throws -> [(name: String, content: JSON)] {
    guard let recordings else { throw XCTSkip("SPECSTREAM_RECORDINGS is not set") }
    let found = try FileManager.default.contentsOfDirectory(at: recordings, includingPropertiesForKeys: nil)
        .filter { $0.lastPathComponent.hasPrefix(prefix) }
    XCTAssertFalse(found.isEmpty, "no file \(prefix)* in \(recordings.path)")
    return try found.map {
        let content = try JSONSerialization.jsonObject(with: Data(contentsOf: $0))
        return ($0.lastPathComponent, try XCTUnwrap(content as? JSON))
    }
}

func ints(_ value: Any?) -> [Int] { (value as! [NSNumber]).map(\.intValue) }
func tokens(_ value: Any?) -> [Int32] { (value as! [NSNumber]).map(\.int32Value) }

/// A tensor from nested lists.
func tensor(_ name: String, _ nested: Any) -> Tensor {
    var shape: [Int] = [], level: Any? = nested
    while let list = level as? [Any] {
        shape.append(list.count)
        level = list.first
    }
    func flat(_ value: Any) -> [NSNumber] { (value as? [Any])?.flatMap(flat) ?? [value as! NSNumber] }
    let numbers = flat(nested)
    return ["logits", "logProbs", "streamHidden"].contains(name)
        ? Tensor(numbers.map(\.floatValue), shape: shape)
        : Tensor(numbers.map(\.int32Value), shape: shape)
}

func tensors(_ named: Any?) -> [String: Tensor] {
    Dictionary(uniqueKeysWithValues: (named as! JSON).map { ($0, tensor($0, $1)) })
}

/// Answers as recorded, and refuses calls that are not the recorded ones.
final class Replay: StepRunner {
    struct Difference: Error {
        let call: Int, what: String
    }

    private var calls: [JSON] = []
    private(set) var answered = 0

    func load(_ calls: [JSON]) { (self.calls, answered) = (calls, 0) }

    var isOver: Bool { answered == calls.count }

    func call(_ function: String, _ inputs: [String: Tensor]) throws -> [String: Tensor] {
        guard answered < calls.count else { throw Difference(call: answered, what: "one call more") }
        let call = calls[answered], expected = tensors(call["inputs"])
        guard call["function"] as? String == function else { throw Difference(call: answered, what: function) }
        guard Set(expected.keys) == Set(inputs.keys) else { throw Difference(call: answered, what: "names of inputs") }
        for (name, value) in expected where inputs[name] != value {
            throw Difference(call: answered, what: "\(name) is \(inputs[name]!), expected \(value)")
        }
        answered += 1
        return tensors(call["outputs"])
    }
}
