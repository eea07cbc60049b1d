import Foundation

/// How to generate.
public struct GenerationSettings: Sendable {
    public var maxTokens: Int
    /// Each of them ends the text; the base's own where it is `nil`.
    public var endTokens: Set<Int32>?
    /// Drafts of a step; one less than the package's smallest step has nodes where it is `nil`.
    public var treeSize: Int?
    /// 0 takes the likeliest token; above, the package must have functions for sampling.
    public var temperature: Double
    public var seed: UInt64

    public init(
        maxTokens: Int = 256, endTokens: Set<Int32>? = nil, treeSize: Int? = nil, temperature: Double = 0, seed: UInt64 = 0
    ) {
        self.maxTokens = maxTokens
        self.endTokens = endTokens
        self.treeSize = treeSize
        self.temperature = temperature
        self.seed = seed
    }
}

/// Decodes with one adapter of a package.
///
/// Every step checks a tree of drafts and, as its first act, commits the rows of the path that the
/// step before has accepted.
public final class SpecStreamDecoder<Runner: StepRunner> {
    public let facts: PackageFacts
    private let runner: Runner
    private var adapter: String
    private var text: [Int32] = []
    private var reusable = 0  // rows, of the first tokens of `text`, that a later prompt may use

    public init(runner: Runner, facts: PackageFacts, adapter: String) throws {
        (self.runner, self.facts, self.adapter) = (runner, facts, adapter)
        try swap(to: adapter)
    }

    /// Goes on with another adapter, which reads its prompts from their beginnings.
    public func swap(to adapter: String) throws {
        guard facts.adapters[adapter] != nil else { throw SpecStreamError.noAdapter(adapter) }
        (self.adapter, text, reusable) = (adapter, [], 0)
    }

    /// Writes a text behind a prompt.
    ///
    /// A prompt that begins as the text so far does, as the next turn of a conversation, is read
    /// from there on where the rows can be used again: rows of generated text cannot in shared mode,
    /// since streams were beside them.
    ///
    /// - Parameters:
    ///   - prompt: token ids.
    ///   - written: is given the tokens of each step, of which there may be none.
    /// - Returns: the tokens, without an end token.
    @discardableResult
    public func generate(
        _ prompt: [Int32], settings: GenerationSettings, written: ([Int32]) throws -> Void = { _ in }
    ) throws -> [Int32] {
        let context = facts.sizes.context, mostNodes = facts.sizes.mostNodes
        let size = settings.treeSize ?? (facts.sizes.nodes.filter { $0 > 1 }.min() ?? 1) - 1
        guard 0..<mostNodes ~= size else { throw SpecStreamError.treeSize(size) }
        guard settings.temperature <= 0 || facts.sampling else { throw SpecStreamError.noSampling }
        guard let last = prompt.last else { throw SpecStreamError.emptyPrompt }
        guard prompt.count <= context else { throw SpecStreamError.context(prompt.count) }
        if let token = prompt.first(where: { !(0..<facts.base.vocabSize ~= $0) }) { throw SpecStreamError.token(token) }
        let endTokens = settings.endTokens ?? facts.base.endTokens
        let most = min(settings.maxTokens, context - prompt.count + 1)  // the last token is not read
        let sampler = settings.temperature > 0 ? KeyedSampler(settings.temperature, seed: settings.seed) : nil
        var rows = try prefill(prompt), start = rows, commit = Array(0..<mostNodes)
        var tree = DraftTree(root: last), generated: [Int32] = []
        while generated.count < most {
            let inputs = self.inputs(tree, rows: rows, start: start, commit: commit)
            let step = try sampler.map { try sampled($0, tree, inputs, drawn: generated.count) } ?? greedy(tree, inputs)
            if facts.adapters[adapter]!.mode != "shared" { reusable = rows }
            var tokens = step.path.dropFirst().map { tree.tokens[$0] } + [step.token]
            let end = tokens.firstIndex(where: endTokens.contains)
            tokens = Array(tokens.prefix(min(end ?? .max, most - generated.count)))
            generated += tokens
            text += tokens
            try written(tokens)
            if end != nil { break }
            (start, rows) = (rows, rows + step.path.count)
            commit = step.path + (0..<mostNodes).filter { !step.path.contains($0) }
            tree = DraftTree(root: step.token, guesses: step.guesses, size: size)
        }
        return generated
    }

    /// Reads all of a prompt but its last token, and returns how many rows are committed.
    private func prefill(_ prompt: [Int32]) throws -> Int {
        let chunk = facts.sizes.chunk
        let same = zip(text, prompt).prefix { $0 == $1 }.count
        var rows = min(same, reusable, prompt.count - 1)
        (text, reusable) = ([], 0)  // should a call fail
        while rows < prompt.count - 1 {
            let part = prompt[rows..<min(rows + chunk, prompt.count - 1)]
            let padded = part + [Int32](repeating: 0, count: chunk - part.count)
            _ = try call("prefill\(chunk)", ["inputIds": Tensor(Array(padded)), "length": Tensor([Int32(rows)])])
            rows += part.count
        }
        (text, reusable) = (prompt, rows)
        return rows
    }

    private struct Step {
        /// Accepted nodes, the root first.
        let path: [Int]
        /// The target's own, behind them.
        let token: Int32
        let guesses: StreamGuesses
    }

    private func greedy(_ tree: DraftTree, _ inputs: [String: Tensor]) throws -> Step {
        let found = try call("step\(nodes(tree))", inputs)
        let last = Int(found["last"]!.ints[0])
        return Step(path: tree.path(to: last), token: found["predictions"]!.ints[last], guesses: guesses(found))
    }

    private func sampled(
        _ sampler: KeyedSampler, _ tree: DraftTree, _ inputs: [String: Tensor], drawn: Int
    ) throws -> Step {
        let found = try call("logits\(nodes(tree))", inputs.filter { $0.key != "parents" })
        var path = [0], token: Int32
        while true {
            token = sampler.token(found["logits"]!.row(path.last!), position: drawn + path.count - 1)
            let child = tree.parents.indices.first { tree.parents[$0] == path.last! && tree.tokens[$0] == token }
            guard let child else { break }
            path.append(child)
        }
        guard let hidden = found["streamHidden"] else {
            return Step(path: path, token: token, guesses: StreamGuesses())
        }
        var wanted = ["streamHidden": Tensor(Array(hidden.row(path.last!)), shape: Array(hidden.shape.dropFirst()))]
        if facts.adapters[adapter]!.streamHead == "conditioned" { wanted["token"] = Tensor([token]) }
        return Step(path: path, token: token, guesses: guesses(try call("draft", wanted)))
    }

    private func guesses(_ found: [String: Tensor]) -> StreamGuesses {
        guard let tokens = found["candidates"], let logProbs = found["logProbs"] else { return StreamGuesses() }
        return StreamGuesses(tokens: tokens, logProbs: logProbs, parents: found["candidateParents"])
    }

    /// Nodes of the smallest step that holds a tree.
    private func nodes(_ tree: DraftTree) -> Int {
        facts.sizes.nodes.filter { $0 >= tree.tokens.count }.min()!
    }

    /// The inputs of a step; nodes that fill up the tree see themselves alone.
    private func inputs(_ tree: DraftTree, rows: Int, start: Int, commit: [Int]) -> [String: Tensor] {
        let nodes = nodes(tree)
        func padded(_ values: [Int], with value: Int) -> Tensor {
            Tensor((values + Array(repeating: value, count: nodes - values.count)).map(Int32.init))
        }
        var ancestors = [Int32](repeating: 0, count: nodes * nodes)
        for node in 0..<nodes {
            for above in node < tree.tokens.count ? tree.path(to: node) : [node] { ancestors[node * nodes + above] = 1 }
        }
        return [
            "inputIds": padded(tree.tokens.map(Int.init), with: 0),
            "positions": padded(tree.depths.map { rows + $0 }, with: 0),
            "parents": padded(tree.parents, with: -1),
            "ancestors": Tensor(ancestors, shape: [nodes, nodes]),
            "length": Tensor([Int32(rows)]),
            "start": Tensor([Int32(start)]),
            "commit": Tensor(commit.map(Int32.init)),
        ]
    }

    private func call(_ function: String, _ inputs: [String: Tensor]) throws -> [String: Tensor] {
        try runner.call("\(adapter)_\(function)", inputs)
    }
}
