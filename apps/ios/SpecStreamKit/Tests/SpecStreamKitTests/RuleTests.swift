import XCTest

@testable import SpecStreamKit

/// Trees, noise and draws are those of the Python runtime.
final class RuleTests: XCTestCase {
    func testTreesAreTheSame() throws {
        for (_, content) in try files("trees") {
            for example in content["trees"] as! [JSON] {
                let found = tensors(example["guesses"])
                let guesses = StreamGuesses(
                    tokens: found["candidates"]!, logProbs: found["logProbs"]!, parents: found["candidateParents"])
                let tree = DraftTree(root: 7, guesses: guesses, size: example["size"] as! Int)
                XCTAssertEqual(tree.tokens, tokens(example["tokens"]))
                XCTAssertEqual(tree.parents, ints(example["parents"]))
                XCTAssertEqual(tree.depths, ints(example["depths"]))
            }
        }
    }

    func testNoiseIsTheSame() throws {
        for (_, content) in try files("noise") {
            for example in content["positions"] as! [JSON] {
                let noise = Noise(seed: UInt64(example["seed"] as! String)!), position = example["position"] as! Int
                let uniform = tensor("logits", example["uniform"]!).floats
                let gumbel = tensor("logits", example["gumbel"]!).floats
                XCTAssertEqual(String(noise.number(position)), example["number"] as! String)
                XCTAssertEqual(noise.uniform(position, count: uniform.count), uniform)
                for (ours, theirs) in zip(noise.gumbel(position, count: gumbel.count), gumbel) {
                    XCTAssertEqual(ours, theirs, accuracy: 4e-6)  // two logarithms in single precision
                }
            }
        }
    }

    func testDrawsAreTheSame() throws {
        for (_, content) in try files("draws") {
            for example in content["draws"] as! [JSON] {
                let sampler = KeyedSampler(
                    (example["temp"] as! NSNumber).doubleValue, seed: UInt64(example["seed"] as! String)!)
                for (position, row) in (example["logits"] as! [Any]).enumerated() {
                    let logits = tensor("logits", row).floats
                    XCTAssertEqual(sampler.token(logits[...], position: position), tokens(example["tokens"])[position])
                }
            }
        }
    }

    private let json = """
        {"version": 1, "sampling": false, "sizes": {"context": 64, "nodes": [8, 16], "chunk": 16, "candidates": 4},
         "adapters": {"plain": {}, "sql": {"mode": "shared", "prompt_template": "Write SQL: {text}"}},
         "base": {"end_tokens": [2], "vocab_size": 9}, "tokenizer": "x.tokenizer"}
        """

    func testAnInstructionHoldsTheText() throws {
        let facts = try PackageFacts(json: json)
        XCTAssertEqual(facts.adapters["sql"]?.instruction(for: "all rows"), "Write SQL: all rows")
        XCTAssertEqual(facts.adapters["plain"]?.instruction(for: "all rows"), "all rows")
        XCTAssertEqual(facts.base.endTokens, [2])
    }

    func testOtherPackagesAreRefused() throws {
        let later = json.replacingOccurrences(of: "\"version\": 1", with: "\"version\": 2")
        XCTAssertThrowsError(try PackageFacts(json: later)) { XCTAssertEqual($0 as? SpecStreamError, .version(2)) }
        let decoder = try SpecStreamDecoder(runner: Replay(), facts: PackageFacts(json: json), adapter: "plain")
        XCTAssertThrowsError(try decoder.generate([1], settings: GenerationSettings(temperature: 1))) {
            XCTAssertEqual($0 as? SpecStreamError, .noSampling)
        }
    }
}
