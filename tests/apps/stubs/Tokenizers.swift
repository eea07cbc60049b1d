// What the example uses of swift-transformers' Tokenizers, as its source declares it, without contents.
import Foundation

public typealias Message = [String: any Sendable]

public protocol Tokenizer: Sendable {
    func applyChatTemplate(messages: [Message]) throws -> [Int]
    func decode(tokens: [Int], skipSpecialTokens: Bool) -> String
}

extension Tokenizer {
    public func decode(tokens: [Int]) -> String { fatalError() }
}

public enum AutoTokenizer {
    public static func from(modelFolder: URL, strict: Bool = true) async throws -> any Tokenizer { fatalError() }
}
