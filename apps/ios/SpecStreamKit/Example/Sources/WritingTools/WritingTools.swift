import CoreML
import Foundation
import SpecStreamKit
import Tokenizers

/// The adapters of a package as tools; an actor, since they share a cache and a call takes a while.
actor WritingTools {
    let names: [String]
    private let decoder: SpecStreamDecoder<CoreMLRunner>
    private let tokenizer: any Tokenizer

    /// - Parameters:
    ///   - package: the compiled package (`.mlmodelc`).
    ///   - tokenizer: the folder that was written beside the package.
    init(package: URL, tokenizer: URL) async throws {
        let runner = try CoreMLRunner(package: package)
        let names = runner.facts.adapters.keys.sorted()
        self.names = names
        self.tokenizer = try await AutoTokenizer.from(modelFolder: tokenizer)
        decoder = try SpecStreamDecoder(runner: runner, facts: runner.facts, adapter: names[0])
    }

    /// What a tool makes of a text, again with each step that has added something.
    nonisolated func texts(of tool: String, for text: String) -> AsyncThrowingStream<String, Error> {
        AsyncThrowingStream { continuation in
            Task {
                do {
                    try await apply(tool, to: text) { continuation.yield($0) }
                    continuation.finish()
                } catch {
                    continuation.finish(throwing: error)
                }
            }
        }
    }

    private func apply(_ tool: String, to text: String, show: (String) -> Void) throws {
        try decoder.swap(to: tool)
        let instruction = decoder.facts.adapters[tool]!.instruction(for: text)
        let prompt = try tokenizer.applyChatTemplate(messages: [["role": "user", "content": instruction]])
        var tokens: [Int] = []
        try decoder.generate(prompt.map(Int32.init), settings: GenerationSettings()) {
            tokens += $0.map(Int.init)
            show(tokenizer.decode(tokens: tokens))
        }
    }
}
