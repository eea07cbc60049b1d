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
        public let name: String
        public let endTokens: Set<Int32>

        enum CodingKeys: String, CodingKey {
            case name, endTokens = "end_tokens"
        }
    }

    public let version: Int
    public let sizes: Sizes
    /// Whether there are functions for sampling.
    public let sampling: Bool
    /// By name, with which their functions begin.
    public let adapters: [String: Adapter]
    public let base: Base?
    /// The folder of the tokenizer that was written beside the package.
    public let tokenizer: String?

    /// - Parameter json: the text under `specstream`.
    public init(json: String) throws {
        self = try JSONDecoder().decode(Self.self, from: Data(json.utf8))
        guard version == 1 else { throw SpecStreamError.version(version) }
    }
}

public enum SpecStreamError: Error, Equatable {
    /// The package is of a later version than this code.
    case version(Int)
    /// What Core ML loaded is no package of ours.
    case noFacts
    case noAdapter(String)
    case noSampling
    /// No step of the package has room for so many drafts.
    case treeSize(Int)
    case emptyPrompt
    /// The prompt is longer than the package's context.
    case context(Int)
}
