/// What the streams beside one node guess for the tokens behind it.
///
/// Plain streams guess the token of each depth whatever came before it. Streams that know the token
/// before guess anew behind each of the likeliest paths, and nothing elsewhere.
public struct StreamGuesses {
    /// A guess for one token and its log-probability in nats.
    public typealias Guess = (token: Int32, logProb: Double)

    private var byDepth: [[Guess]] = []
    private var byPath: [[Int32]: [Guess]] = [:]

    /// Nothing: what a step without streams guesses.
    public init() {}

    /// - Parameters:
    ///   - tokens: `candidates`, (gamma, k) ids, best first; (gamma, paths, k) of streams that know
    ///     the token before.
    ///   - logProbs: of the same shape.
    ///   - parents: `candidateParents`, (gamma, paths): which guess of the depth before each path
    ///     ends with; at depth 1 there is one path, which is empty, and -1 marks what fills up a row.
    public init(tokens: Tensor, logProbs: Tensor, parents: Tensor? = nil) {
        let k = tokens.shape.last!
        let flat = Array(zip(tokens.ints, logProbs.floats.map(Double.init)))
        func guesses(_ row: Int) -> [Guess] { flat[row * k..<(row + 1) * k].map { $0 } }
        guard let parents else {
            byDepth = (0..<tokens.shape[0]).map(guesses)
            return
        }
        let paths = parents.shape[1]
        var before: [[Int32]] = []
        for depth in 0..<parents.shape[0] {
            var here: [[Int32]] = []
            for row in 0..<paths {
                let parent = Int(parents.ints[depth * paths + row])
                var path: [Int32] = []
                if depth > 0, parent >= 0 {
                    path = before[parent / k] + [tokens.ints[(depth - 1) * paths * k + parent]]
                }
                here.append(path)
                if (depth == 0 || parent >= 0) && byPath[path] == nil {
                    byPath[path] = guesses(depth * paths + row)
                }
            }
            before = here
        }
    }

    /// The guesses for the token after a path; none beyond gamma or where nobody asked.
    public func behind(_ path: [Int32]) -> [Guess] {
        path.count < byDepth.count ? byDepth[path.count] : byPath[path] ?? []
    }
}
