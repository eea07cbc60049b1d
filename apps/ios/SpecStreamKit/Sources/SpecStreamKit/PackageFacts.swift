import Foundation

/// What a package says of itself: JSON under `specstream` in its metadata.
public struct PackageFacts: Decodable, Sendable {
    public struct Sizes: Decodable, Sendable {
        /// Rows that may be committed.
        public let context: Int
        /// Nodes of the trees; there is one step function for each.
        public let nodes: [Int]
        /// Prompt tokens of a prefill call.
        public let chunk: Int

        var mostNodes: Int { nodes.max()! }
    }

    /// An adapter; without streams all is `nil`.
    public struct Adapter: Decodable, Sendable {
        public let mode: String?
        public let streamHead: String?
        public let promptTemplate: String?

        enum CodingKeys: String, CodingKey {
            case mode, streamHead = "stream_head", promptTemplate = "prompt_template"
        }

        /// What the model is to be told: the template with the user's text in it.
        public func instruction(for text: String) -> String {
            promptTemplate?.replacingOccurrences(of: "{text}", with: text) ?? text
        }
    }

    public struct Base: Decodable, Sendable {
        /// Each of them ends a text.
        public let endTokens: Set<Int32>
        public let vocabSize: Int32

        enum CodingKeys: String, CodingKey {
            case endTokens = "end_tokens", vocabSize = "vocab_size"
        }
    }

    public let version: Int
    public let sizes: Sizes
    /// Whether there are functions for sampling.
    public let sampling: Bool
    /// By name, with which their functions begin.
    public let adapters: [String: Adapter]
    public let base: Base
    /// The folder of the tokenizer that was written beside the package.
    public let tokenizer: String

    /// - Parameter json: the text under `specstream`.
    public init(json: String) throws {
        self = try JSONDecoder().decode(Self.self, from: Data(json.utf8))
        guard version == 1 else { throw SpecStreamError.version(version) }
    }
}

public enum SpecStreamError: Error, Equatable, CustomStringConvertible {
    case version(Int)
    case noFacts
    case noAdapter(String)
    case noSampling
    case treeSize(Int)
    case emptyPrompt
    case context(Int)
    case token(Int32)

    public var description: String {
        switch self {
        case .version(let version): "the package has the version \(version), expected 1"
        case .noFacts: "the model's metadata has no specstream, expected a package of export-coreml"
        case .noAdapter(let name): "the adapter is \(name), expected one of the package's"
        case .noSampling: "the package has no functions for a temperature, expected an export with --sampling"
        case .treeSize(let size): "treeSize is \(size), expected less than the nodes of the package's largest step"
        case .emptyPrompt: "the prompt is empty, expected at least one token"
        case .context(let count): "the prompt has \(count) tokens, expected at most the package's context"
        case .token(let token): "the prompt holds token \(token), expected one of the base's vocabulary"
        }
    }
}
