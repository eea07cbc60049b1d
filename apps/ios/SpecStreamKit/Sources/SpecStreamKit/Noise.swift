import Foundation

/// The randomness of one text, by position; position 0 is the first token that is drawn.
///
/// What a position draws with follows from the seed alone, so no draft changes a text. The integers
/// are those of the Python runtime (`engine/noise.py` and MLX's Threefry), the logarithms this
/// platform's.
public struct Noise {
    private static let step: UInt64 = 0x9E37_79B9_7F4A_7C15
    private static let uses: UInt64 = 4  // kinds of randomness at a position; ours is the first
    private static let lowest: Float = -8
    private static let rotations: [UInt32] = [13, 15, 26, 6, 17, 29, 16, 24]
    private let stem: UInt64

    public init(seed: UInt64) {
        stem = Self.mixed(seed &+ Self.step)
    }

    /// 64 random bits of a position.
    public func number(_ position: Int) -> UInt64 {
        Self.mixed(stem &+ (Self.uses &* UInt64(position) &+ 1) &* Self.step)
    }

    /// Gumbel noise of a position, one number for each token of the vocabulary.
    public func gumbel(_ position: Int, count: Int) -> [Float] {
        uniform(position, count: count).map { max(-log(-log($0)), Self.lowest) }
    }

    /// Uniform numbers from 0 to below 1, as `mx.random.uniform` draws them.
    func uniform(_ position: Int, count: Int) -> [Float] {
        bits(position, count: count).map { min(Float($0) / Float(UInt32.max), Float(1).nextDown) }
    }

    private func bits(_ position: Int, count: Int) -> [UInt32] {
        let number = number(position), half = count / 2, odd = count % 2
        let high = UInt32(truncatingIfNeeded: number >> 32), low = UInt32(truncatingIfNeeded: number)
        let keys = [high, low, high ^ low ^ 0x1BD1_1BDA]
        var found = [UInt32](repeating: 0, count: count)
        for first in 0..<half {
            let second = first + half + odd
            (found[first], found[second]) = Self.threefry(keys, UInt32(first), UInt32(second))
        }
        if odd == 1 {
            found[half] = Self.threefry(keys, UInt32(half), 0).0
        }
        return found
    }

    /// splitmix64's finalizer (Steele, Lea and Flood 2014).
    private static func mixed(_ number: UInt64) -> UInt64 {
        var number = (number ^ (number >> 30)) &* 0xBF58_476D_1CE4_E5B9
        number = (number ^ (number >> 27)) &* 0x94D0_49BB_1331_11EB
        return number ^ (number >> 31)
    }

    /// Threefry-2x32 with 20 rounds (Salmon et al. 2011).
    private static func threefry(_ keys: [UInt32], _ first: UInt32, _ second: UInt32) -> (UInt32, UInt32) {
        var x = first &+ keys[0], y = second &+ keys[1]
        for round in 0..<5 {
            for number in 0..<4 {
                let by = rotations[round % 2 * 4 + number]
                x &+= y
                y = (y << by | y >> (32 - by)) ^ x
            }
            x &+= keys[(round + 1) % 3]
            y &+= keys[(round + 2) % 3] &+ UInt32(round + 1)
        }
        return (x, y)
    }
}
