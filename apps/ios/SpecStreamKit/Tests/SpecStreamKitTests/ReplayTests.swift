import XCTest

@testable import SpecStreamKit

/// What the Python runtime asked of a package, this decoder asks too.
final class ReplayTests: XCTestCase {
    private func settings(_ run: JSON) -> GenerationSettings {
        let said = run["settings"] as! JSON
        var settings = GenerationSettings()
        settings.treeSize = (said["tree_size"] as! NSNumber).intValue
        settings.temperature = (said["temperature"] as! NSNumber).doubleValue
        settings.seed = (said["seed"] as? NSNumber)?.uint64Value ?? 0
        settings.maxTokens = (said["max_tokens"] as! NSNumber).intValue
        settings.endTokens = Set(tokens(said["stop_tokens"]))
        return settings
    }

    private func decoder(_ content: JSON, _ replay: Replay) throws -> SpecStreamDecoder<Replay> {
        let facts = try PackageFacts(json: content["facts"] as! String)
        return try SpecStreamDecoder(runner: replay, facts: facts, adapter: facts.adapters.keys.min()!)
    }

    /// Replays a file's runs; `change` may spoil one first.
    private func replay(_ content: JSON, change: (inout JSON) -> Void = { _ in }) throws {
        let replay = Replay(), decoder = try decoder(content, replay)
        for var run in content["runs"] as! [JSON] {
            change(&run)
            if run["continues"] as? Bool != true { try decoder.swap(to: run["adapter"] as! String) }
            replay.load(run["calls"] as! [JSON])
            var steps: [Int32] = []
            let found = try decoder.generate(tokens(run["prompt"]), settings: settings(run)) { steps += $0 }
            XCTAssertEqual(found, tokens(run["tokens"]))
            XCTAssertEqual(steps, found)
            XCTAssertTrue(replay.isOver, "only \(replay.answered) calls")
        }
    }

    func testEveryInputOfEveryCallIsAsRecorded() throws {
        for (name, content) in try files("recording") {
            XCTAssertNoThrow(try replay(content), name)
        }
    }

    func testWhatIsNotAsRecordedIsFound() throws {
        for (name, content) in try files("recording") {
            for input in ["inputIds", "positions", "ancestors", "length", "start", "commit"] {
                XCTAssertThrowsError(
                    try replay(content) { run in
                        var calls = run["calls"] as! [JSON]
                        let last = calls.lastIndex { ($0["inputs"] as! JSON)[input] != nil }!
                        var inputs = calls[last]["inputs"] as! JSON
                        inputs[input] = Self.spoilt(inputs[input]!)
                        calls[last]["inputs"] = inputs
                        run["calls"] = calls
                    }, "\(name): \(input)")
            }
        }
    }

    /// A nested list whose first number is larger by one.
    private static func spoilt(_ value: Any) -> Any {
        guard let list = value as? [Any] else { return NSNumber(value: (value as! NSNumber).intValue + 1) }
        return [spoilt(list[0])] + list.dropFirst()
    }

    func testWhatAPackageCannotDoIsRefused() throws {
        for (_, content) in try files("recording") {
            let decoder = try decoder(content, Replay())
            XCTAssertThrowsError(try decoder.swap(to: "nobody")) { XCTAssertEqual($0 as? SpecStreamError, .noAdapter("nobody")) }
            XCTAssertThrowsError(try decoder.generate([], settings: GenerationSettings())) {
                XCTAssertEqual($0 as? SpecStreamError, .emptyPrompt)
            }
            let long = [Int32](repeating: 1, count: decoder.facts.sizes.context + 1)
            XCTAssertThrowsError(try decoder.generate(long, settings: GenerationSettings())) {
                XCTAssertEqual($0 as? SpecStreamError, .context(long.count))
            }
            XCTAssertThrowsError(try decoder.generate([1, 1000], settings: GenerationSettings())) {
                XCTAssertEqual($0 as? SpecStreamError, .token(1000))
            }
            XCTAssertThrowsError(try decoder.generate([1], settings: GenerationSettings(treeSize: 1000))) {
                XCTAssertEqual($0 as? SpecStreamError, .treeSize(1000))
            }
        }
    }
}
